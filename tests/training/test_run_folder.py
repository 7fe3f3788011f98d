"""The run folder: the same one for every rank."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import SettingsError
from toolkit.testing.distributed import run_distributed


@dataclass(frozen=True)
class SeesAnotherFolder:
    """A run whose folder lies, for rank 1, on another disk: a relative path from another place."""

    run_file: str
    folder: str

    def __call__(self) -> str:
        place = Path(self.folder) / f"node-{os.environ['RANK']}"
        place.mkdir()
        before = Path.cwd()
        os.chdir(place)
        try:
            RunCase(self.run_file, "zero0", ("run.dir=runs/first", "checkpoint.every=1"))()
        except SettingsError as error:
            return str(error)
        finally:
            os.chdir(before)
        return "finished"


def test_one_that_a_rank_does_not_see_is_refused_before_the_first_step(tmp_path):
    ((first, second),) = run_distributed([SeesAnotherFolder(str(write_run(tmp_path)), str(tmp_path))], world_size=2)
    assert first == second
    assert "rank 1" in first
    assert "does not see" in first
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_nothing_is_left_of_the_look_at_it(tmp_path):
    ((outcome, _),) = run_distributed([RunCase(str(write_run(tmp_path)), "zero0", ("eval.rows=1",))], world_size=2)[0][
        :1
    ]
    assert outcome == "finished at step 20"
    assert not list((tmp_path / "run").glob(".look-*"))
