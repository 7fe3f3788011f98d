"""Checkpoints are written while training continues: they hold their own step, and a writer that fails ends the run."""

import os
import resource
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.resume.test_resume import differing_tensors
from tests.support.layouts import Layout, stage3
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.folders import WRITING_PREFIX, step_folders, step_name
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import CheckpointError
from toolkit.engine import saving
from toolkit.parallel.launcher import STOP_FILE_VARIABLE
from toolkit.testing.distributed import run_distributed
from toolkit.training.pretrain import StopRequest

_PHASE, _EVERY = 3, 3
_LAST = 2 * _PHASE
_SAVING = (f"checkpoint.every={_EVERY}", "checkpoint.keep=9")


def _last_step(run_folder: Path) -> int:
    lines = read_metrics(run_folder)
    return lines[-1]["step"] if lines else 0


def _saved(run_folder: str) -> list[int]:
    """Visible checkpoints, all of them whole, and nothing hidden beside them."""
    root = Path(run_folder) / "checkpoints"
    assert not list(root.glob(f"{WRITING_PREFIX}*"))
    return [open_checkpoint(folder).manifest.step for _, folder in reversed(step_folders(root))]


@dataclass(frozen=True)
class WithWriter:
    """A run in which `before_writing` gets the hidden folder of each checkpoint, in the thread that will write it."""

    run_file: str
    folder: str
    layout: Layout
    overrides: tuple[str, ...] = ()

    def before_writing(self, hidden: Path) -> None:
        """Nothing."""

    def __call__(self) -> tuple[str, str]:
        """How it ended, or its error, and of what type that is."""
        write_part = saving.write_part

        def write(folder, **arguments):
            self.before_writing(folder)
            return write_part(folder, **arguments)

        overrides = (f"run.dir={self.folder}", *_SAVING, *self.layout.overrides, *self.overrides)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saving, "write_part", write)
            patch.setenv(STOP_FILE_VARIABLE, f"{self.folder}.stop")
            try:
                return RunCase(self.run_file, self.layout.ds_config, overrides)()[0], ""
            except (CheckpointError, KeyboardInterrupt) as error:
                agreed = "agreed " if getattr(error, "is_agreed", False) else ""
                return str(error), f"{agreed}{type(error).__name__}"


class HeldBack(WithWriter):
    """The first checkpoint is not written before the run is two steps further."""

    def before_writing(self, hidden: Path) -> None:
        """Wait for the metrics of that step; a run that waited for its writer would never get there."""
        deadline = time.monotonic() + 60
        while step_name(_EVERY) in hidden.name and _last_step(Path(self.folder)) < _EVERY + 2:
            assert time.monotonic() < deadline, "training did not continue"
            time.sleep(0.01)


@pytest.mark.costs(10)
def test_a_checkpoint_holds_its_own_step_however_late_it_is_written(tmp_path):
    run_file = str(write_run(tmp_path, phase_steps=_PHASE))
    layouts = [Layout("zero0", 1), Layout("zero0", 2), Layout("zero1", 2), Layout(stage3(tmp_path), 2)]
    layouts += [Layout("pipeline", 2, pp=2), Layout("zero1", 2, tp=2)]
    for size in (1, 2):
        same_size = [layout for layout in layouts if layout.ranks == size]
        kinds = [(kind, layout) for layout in same_size for kind in (WithWriter, HeldBack)]
        cases = [kind(run_file, str(tmp_path / f"{kind.__name__} {layout}"), layout) for kind, layout in kinds]
        for results in run_distributed(cases, world_size=size):
            assert results == [(f"finished at step {_LAST}", "")] * size
        for prompt, late in zip(cases[::2], cases[1::2], strict=True):
            assert _saved(prompt.folder) == _saved(late.folder) == [_EVERY, _LAST], late
            for step in (_EVERY, _LAST):
                one, other = (
                    open_checkpoint(f"{case.folder}/checkpoints/{step_name(step)}") for case in (prompt, late)
                )
                assert differing_tensors(one, other) == [], (late, step)
                own = {"settings", "files"}
                assert one.manifest.model_dump(exclude=own) == other.manifest.model_dump(exclude=own), (late, step)


class IsFull(WithWriter):
    """At the second checkpoint, rank 1 may write no file of any size, and fails before rank 0 begins."""

    def before_writing(self, hidden: Path) -> None:
        """Let the system refuse it."""
        if step_name(2 * _EVERY) not in hidden.name:
            return
        if os.environ["RANK"] == "0":
            time.sleep(0.3)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class LosesTokenizer(WithWriter):
    """At the second checkpoint, the tokenizer that goes into it is gone: rank 0 cannot finish it."""

    def before_writing(self, hidden: Path) -> None:
        """Remove it."""
        if step_name(2 * _EVERY) in hidden.name and os.environ["RANK"] == "0":
            shutil.rmtree(Path(self.folder) / "tokenizer")


def test_a_writer_that_fails_ends_the_run_on_all_ranks_and_harms_no_other_checkpoint(tmp_path):
    run_file = str(write_run(tmp_path))
    layouts = (Layout("zero2", 2), Layout("pipeline", 2, pp=2))
    cases = [
        kind(run_file, str(tmp_path / f"{kind.__name__} {layout}"), layout)
        for kind in (IsFull, LosesTokenizer)
        for layout in layouts
    ]
    # A process each: it would keep the limit on the size of its files.
    for case in cases:
        ((first, second),) = run_distributed([case], world_size=2)
        assert first == second
        assert first[1] == "agreed CheckpointError"
        problem = "File too large" if isinstance(case, IsFull) else "No such file or directory"
        assert first[0].startswith(f"could not write the checkpoint to {case.folder}/checkpoints: {problem}")
        assert first[0].endswith("Checkpoints already there are unchanged.")
        assert _saved(case.folder) == [_EVERY]
        # Before the next checkpoint at the latest.
        assert 2 * _EVERY <= _last_step(Path(case.folder)) <= 3 * _EVERY


class IsStopped(WithWriter):
    """While the first checkpoint is written, the run is asked to stop."""

    def before_writing(self, hidden: Path) -> None:
        """Ask, and give it time to get to its end."""
        if step_name(_EVERY) in hidden.name:
            Path(f"{self.folder}.stop").touch()
            time.sleep(1.0)


def test_a_stop_waits_for_the_checkpoint_in_flight(tmp_path):
    case = IsStopped(str(write_run(tmp_path)), str(tmp_path / "stopped"), Layout("zero1", 2))
    ((first, second),) = run_distributed([case], world_size=2)
    step = _last_step(Path(case.folder))
    assert first == second == (f"stopped at step {step}", "")
    assert step < 2 * _EVERY
    assert _saved(case.folder) == sorted({_EVERY, step})


class IsInterrupted(WithWriter):
    """While the first checkpoint is written, the process gets Ctrl-C."""

    writes, is_interrupted = threading.Event(), threading.Event()

    def before_writing(self, hidden: Path) -> None:
        """Write for longer than the interrupt takes."""
        if step_name(_EVERY) in hidden.name:
            self.writes.set()
            assert self.is_interrupted.wait(60)
            time.sleep(0.5)

    def __call__(self) -> tuple[str, str]:
        """Interrupted in a step: where Python runs a finalizer, it would drop the exception."""

        def asked(request: StopRequest) -> bool:
            if self.writes.is_set() and not self.is_interrupted.is_set():
                self.is_interrupted.set()
                signal.raise_signal(signal.SIGINT)
            return False

        # A process that a shell put into the background ignores Ctrl-C, and so do those that it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StopRequest, "__call__", asked)
            return super().__call__()


def test_an_interrupt_leaves_no_part_of_the_checkpoint_in_flight(tmp_path):
    case = IsInterrupted(str(write_run(tmp_path)), str(tmp_path / "interrupted"), Layout("zero0", 1))
    assert run_distributed([case], world_size=1) == [[("", "KeyboardInterrupt")]]
    assert _saved(case.folder) == []
