"""What fails on one rank only: all ranks raise the same error, so that the run leaves with one message and one code."""

import errno
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.read import newest_intact
from toolkit.core.errors import CheckpointError, CorpusError, ToolkitError
from toolkit.run.folder import RunFolder
from toolkit.run.metrics import MetricsFile, MetricsLine, read_lines
from toolkit.testing.distributed import run_distributed

_MOST_BYTES = 4096


@dataclass(frozen=True)
class FailsOnOneRank:
    """A run on several ranks, one of which fails at `where`; gives type, text and agreement of each rank's error."""

    run_file: str
    folder: str
    where: str
    ds_config: str = "zero2"

    def __call__(self) -> tuple[str, str, bool]:
        from toolkit.engine.ranks import join_ranks

        rank = join_ranks().rank
        every = 10 if self.where in ("retention", "checkpoint") else 100
        overrides = (f"run.dir={self.folder}", f"checkpoint.every={every}", "checkpoint.keep=9", "eval.every=2")
        if self.where == "checkpoint":
            overrides += ("schedule.1.steps=1",)
            RunCase(self.run_file, "zero0", overrides)()
            if rank == 0:
                shutil.rmtree(Path(self.folder) / "checkpoints" / "step-00000011")
            dist.barrier()
        with pytest.MonkeyPatch.context() as patch:
            self._break(rank, patch)
            try:
                RunCase(self.run_file, self.ds_config, overrides)()
            except (ToolkitError, OSError) as error:
                return type(error).__name__, str(error), getattr(error, "is_agreed", False)
            finally:
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        return "", "finished", False

    def _break(self, rank: int, patch: pytest.MonkeyPatch) -> None:
        from toolkit.checkpoint.read import Checkpoint
        from toolkit.data import RowStream
        from toolkit.training import hooks
        from toolkit.training.batching import EvaluationBatches

        if self.where == "metrics" and rank == 0:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, hard))
        if self.where == "retention" and rank == 0:

            def retain(root: Path, **options: object) -> None:
                raise CheckpointError(f"{root} cannot be tidied")

            patch.setattr(hooks, "retain", retain)
        if self.where == "log" and rank == 0:
            append = MetricsFile.append

            def fail(file: MetricsFile, line: MetricsLine) -> None:
                if line["step"] == 4:
                    raise OSError(errno.ENOSPC, "No space left on device")
                append(file, line)

            patch.setattr(MetricsFile, "append", fail)
        if self.where == "checkpoint" and rank == 0:
            read_parameter = Checkpoint.parameter

            def parameter(checkpoint: Checkpoint, name: str) -> object:
                if "norm" in name:
                    raise CheckpointError(f"{name} cannot be read")
                return read_parameter(checkpoint, name)

            patch.setattr(Checkpoint, "parameter", parameter)
        if rank != 1:
            return
        if self.where == "rows":
            read_rows = RowStream.at

            def at(stream: RowStream, samples_B: object) -> object:
                if samples_B.min() >= 3 * 8:
                    raise CorpusError("shard-00000.bin is damaged")
                return read_rows(stream, samples_B)

            patch.setattr(RowStream, "at", at)
        if self.where == "validation":

            def of(batches: EvaluationBatches, objective: object) -> object:
                raise CorpusError("shard-00001.bin is damaged")
                yield

            patch.setattr(EvaluationBatches, "of", of)


_EXPECTED = {
    "metrics": ("UserError", "could not write {folder}/metrics.jsonl: File too large"),
    "log": ("UserError", "could not write {folder}/metrics.jsonl: No space left on device"),
    "retention": ("CheckpointError", "{folder}/checkpoints cannot be tidied"),
    "rows": ("CorpusError", "shard-00000.bin is damaged"),
    "validation": ("CorpusError", "shard-00001.bin is damaged"),
    "checkpoint": ("CheckpointError", "norm.weight cannot be read"),
}


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    """Folder and every rank's error, by what failed."""
    folder = tmp_path_factory.mktemp("one-rank")
    run_file = str(write_run(folder))
    layouts = {"validation": "zero3", "checkpoint": "zero3"}
    cases = [FailsOnOneRank(run_file, str(folder / where), where, layouts.get(where, "zero2")) for where in _EXPECTED]
    results = run_distributed(cases, world_size=2)
    return {case.where: (case.folder, result) for case, result in zip(cases, results, strict=True)}


@pytest.mark.parametrize("where", list(_EXPECTED))
def test_all_ranks_raise_the_same_error(raised, where):
    folder, (first, second) = raised[where]
    kind, message = _EXPECTED[where]
    assert first == second
    assert first[0] == kind
    assert message.format(folder=folder) in first[1]
    # So that rank 0 alone shows it.
    assert first[2]


def test_a_step_that_could_not_be_logged_is_the_last(raised):
    folder, _ = raised["metrics"]
    steps = [line["step"] for line in read_lines(RunFolder(folder))]
    assert steps == list(range(len(steps)))
    assert 3 < len(steps) < 20
    assert not list((Path(folder) / "checkpoints").glob("step-*20"))


def test_a_hook_that_fails_costs_no_step(raised):
    """The other ranks learn of it at the next exchange; a checkpoint appears some steps after its own."""
    unlogged, _ = raised["log"]
    newest, _ = newest_intact(RunFolder(unlogged).checkpoints)
    assert newest.manifest.step in (4, 5)
    assert read_lines(RunFolder(unlogged))[-1]["step"] == 3
    untidy, _ = raised["retention"]
    newest, _ = newest_intact(RunFolder(untidy).checkpoints)
    assert newest.manifest.step == read_lines(RunFolder(untidy))[-1]["step"] > 10
