"""Kills what shares the groups of a corpus: `python -m tests.proofs.groups [--kills 20] [--seed 0]`.

Two commands write one corpus side by side; each is killed (SIGKILL) at a random moment and started again with the other
one, until so many were killed. Where there is a Slurm with two idle nodes, two jobs write it, one is cancelled, and the
same command submits another in its place. All files have to be those of one command that nobody killed.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.slurm import is_available
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.core.files import hash_folder
from toolkit.preprocess.writer.groups import is_unfinished, written_groups
from toolkit.work.commands import work_folder

_NUM_GROUPS = 8
_SECONDS = 1800
# Read by every Python that starts with it on its path.
_SMALL_GROUPS = "from toolkit.preprocess.writer import groups\ngroups.SOURCE_GROUP_BYTES = 1\n"


@dataclass(frozen=True)
class Case:
    """Sources of which each is a group, and commands that make a corpus of them."""

    folder: Path
    num_copies: int
    """How often each source has the same 200 documents, so that a group takes a while."""

    def make(self) -> None:
        """The sources, and the corpus that nothing interrupts, in the folder `whole`."""
        (self.folder / "text").mkdir()
        (self.folder / "sitecustomize.py").write_text(_SMALL_GROUPS)
        tiny_tokenizer(self.folder / "tokenizer")
        for number in range(_NUM_GROUPS):
            lines = [text.replace("\n", " ") + "\n" for text in sample_documents(200, seed=number)]
            (self.folder / "text" / f"{number}.txt").write_text("".join(lines * self.num_copies))
        assert self.start("whole").wait(_SECONDS) == 0

    def start(self, name: str, *options: str) -> "subprocess.Popen[str]":
        """A command that makes the corpus of this name."""
        command = [sys.executable, "-m", "toolkit.cli", "preprocess", str(self.folder / "text")]
        command += ["--tokenizer", str(self.folder / "tokenizer"), "--output", str(self.folder / name)]
        command += ["--txt-documents=line", "--holdout=0.1", "--shard-tokens=50000", "--engine=reference"]
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{os.getcwd()}"}
        kinds = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
        return subprocess.Popen([*command, "--workers=1", *options], **kinds)

    def num_whole(self, name: str) -> int:
        """Groups of a corpus that are done; all, where it is finished."""
        if not is_unfinished(self.folder / name) and (self.folder / name / "corpus.json").exists():
            return _NUM_GROUPS
        return len(written_groups(self.folder / name))

    def differences(self, name: str) -> list[str]:
        """Files that are not those of the corpus that nothing interrupted."""
        found, whole = hash_folder(self.folder / name), hash_folder(self.folder / "whole")
        return sorted(file for file in found.keys() | whole if found.get(file) != whole.get(file))


def kill_side_by_side(case: Case, *, kills: int, seed: int) -> list[str]:
    """Kill so many commands of two at a time; what differs, at the end or when a corpus is finished before."""
    draws, differences, num_killed, began = random.Random(seed), list[str](), 0, time.monotonic()
    case.start("alone").wait(_SECONDS)
    seconds = time.monotonic() - began
    while num_killed < kills:
        for process in [case.start("killed") for _ in range(2)]:
            try:
                process.wait(draws.uniform(0.2, 0.9) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                num_killed += 1
        print(f"{num_killed} killed, {case.num_whole('killed')} of {_NUM_GROUPS} groups done", flush=True)
        if case.num_whole("killed") == _NUM_GROUPS:
            differences += _end(case)
    return differences + _end(case)


def _end(case: Case) -> list[str]:
    """Finish a corpus, compare it, and remove it."""
    folder = case.folder / "killed"
    # The last thing that a command does is to remove what commands said to one another.
    if is_unfinished(folder) or not folder.exists() or work_folder(folder).exists():
        said, _ = case.start("killed").communicate(timeout=_SECONDS)
        assert not is_unfinished(folder), said
    differences = case.differences("killed")
    shutil.rmtree(folder)
    return differences


def cancel_a_job(case: Case) -> list[str]:
    """Two jobs of Slurm of which one is cancelled, and the same command again; what differs."""
    options = ("--executor=slurm", "--tasks=2")
    said, _ = case.start("jobs", *options).communicate(timeout=_SECONDS)
    print(said, flush=True)
    _wait_for(case, 2)
    number = said.partition("jobs-1: job ")[2].partition(",")[0]
    subprocess.run(["scancel", number], check=True)
    while number in subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout:
        time.sleep(0.2)
    said, _ = case.start("jobs", *options).communicate(timeout=_SECONDS)
    print(said, flush=True)
    assert "1 job submitted" in said, said
    _wait_for(case, _NUM_GROUPS)
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout:
        time.sleep(0.2)
    return case.differences("jobs")


def _wait_for(case: Case, num_groups: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while case.num_whole("jobs") < num_groups:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def main() -> int:
    """Kill, print, and leave with 1 where a corpus differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="groups-") as folder:
        case = Case(Path(folder), num_copies=20)
        case.make()
        found = {"two commands side by side": kill_side_by_side(case, kills=options.kills, seed=options.seed)}
        if is_available():
            found["jobs of Slurm, one cancelled"] = cancel_a_job(case)
    for what, differences in found.items():
        print(f"{what}: {differences or 'equal'}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
