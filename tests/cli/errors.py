"""The errors that a user can cause, as a table: a command line, and what its message has to say.

    python -m tests.cli.errors        prints every message as a user sees it, to be read aloud

The table is `errors.txt`: `WORDS -> PIECE | PIECE -> REMEDY`, where words and pieces may name what `Place` lays down,
as {corpus}, {run}, {text} and so on. In brackets before them: what is wrong around the command, or that only ranks can
meet it. An indented line continues the one before; a piece whose spaces at its ends count is in quotation marks.
"""

import os

if __name__ == "__main__":
    # Its client reads this once, when it is imported; the cases have a hub of their own.
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cli.place import Case, Place, call, call_apart

__all__ = ["CASES", "ELSEWHERE", "LAUNCHED"]


def _read_table(text: str) -> Iterator[Case]:
    for line in text.replace("\n    ->", " ->").splitlines():
        if line and not line.startswith("# "):
            left, found, remedy = line.split(" -> ")
            under, words = re.fullmatch(r"(?:\[(.+?)\] )?(.*)", left).groups("")
            pieces = [*found.split(" | "), remedy]
            *found, remedy = (piece[1:-1] if piece.startswith('"') else piece for piece in pieces)
            yield Case(tuple(shlex.split(words)), tuple(found), remedy, under)


_ALL = tuple(_read_table(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))
LAUNCHED = tuple(case for case in _ALL if case.under == "launched")
"""Those that only ranks can meet: each starts the launcher, which takes seconds."""

CASES = tuple(case for case in _ALL if case.under != "launched")

ELSEWHERE = (
    ("work/test_ray.py", "test_a_cluster_without_room_is_refused"),
    ("work/test_ray.py", "test_a_busy_cluster_is_refused"),
    ("work/test_ray.py", "test_a_machine_that_does_not_see_the_folder_is_refused"),
    ("cli/test_train_signals.py", "test_ctrl_c_leaves_with_130_and_no_traceback"),
    ("cli/test_launch.py", "test_what_the_launcher_cannot_take_is_refused"),
    ("training/test_non_finite.py", "test_the_run_ends_and_the_rows_are_named"),
    ("training/test_initial_weights.py", "test_a_run_that_does_not_fit_its_first_weights_is_refused_before_any_rank"),
    ("resume/test_resume.py", "test_other_settings_are_refused_by_name"),
    ("resume/test_resume.py", "test_another_corpus_in_the_same_place_is_refused"),
    ("resume/test_resume.py", "test_other_weights_are_refused_by_name"),
    ("resume/test_fork.py", "test_a_run_that_parted_earlier_is_refused"),
    ("quickstart/test_program.py", "test_a_second_quickstart_in_the_folder_is_refused"),
    ("checkpoint/test_checkpoint_errors.py", "test_a_full_disk_at_any_block_leaves_nothing_and_says_so"),
    ("conversion/test_merging.py", "test_what_makes_no_mean_is_refused"),
    ("training/test_initial_weights.py", "test_a_run_starts_from_a_merge_and_resumes_from_none"),
    ("conversion/test_to_hf_refusals.py", "test_a_full_disk_is_told_and_nothing_is_left"),
    ("preprocess/test_preprocess_restart.py", "test_a_full_disk_is_said_and_then_it_goes_on"),
    ("preprocess/test_preprocess_hub.py", "test_the_command_leaves_with_2_and_one_message"),
    ("run/test_load.py", "test_several_findings_come_in_one_message"),
)
"""Tests, by file and name, of what the contract refuses and no command line in one process can show."""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Place(Path(folder)) as place:
        for case in (*CASES, *LAUNCHED):
            code, said = (call_apart if case in LAUNCHED else call)(case, place)
            print(f"$ toolkit {case.name}\n{said.replace(folder, '...')}[exit {code}]\n")
