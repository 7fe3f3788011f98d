"""Probes of checkpoints: a process beside the training, started by rank 0, looked at between steps, ended with the run.

The process reads a finished checkpoint and prints a score. One runs at a time; checkpoints that wait for their turn are
not deleted (`RetentionHook` asks). Nothing waits for a probe but the end of the run, for a limited time.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from toolkit.core.text import counted
from toolkit.run.declared import DeclaredRun
from toolkit.run.metrics import missing_probes
from toolkit.training.hooks import Hook
from toolkit.training.logged_steps import add_probe, close_all, open_writers
from toolkit.training.run_state import RunState, StepInfo, StepMetrics

# By name: the program joins fine-tuning and conversion, which training knows nothing of.
_PROGRAM = "toolkit.workflows.probe"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_SECONDS_AT_END = 600.0
_SECONDS_BETWEEN_LOOKS = 0.1


class ProbeHook(Hook):
    """Probes checkpoints; as a container, it has the steps whose checkpoints a probe still has to read.

    `report` gets a step and its score by name; once a stop is requested, the end of a run waits no longer.
    """

    def __init__(
        self,
        run: DeclaredRun,
        *,
        report: Callable[[int, Mapping[str, float]], None],
        say: Callable[[str], None],
        is_stop_requested: Callable[[], bool],
    ) -> None:
        assert run.settings.probe is not None
        self._run, self._name, self._folder = run, run.settings.probe.task, run.folder.path
        self._report, self._say, self._is_stop_requested = report, say, is_stop_requested
        self._waiting: deque[int] = deque()
        self._running: _Process | None = None
        self._num_failed = 0
        self._is_behind = False

    def __contains__(self, step: object) -> bool:
        return step in self._waiting or (self._running is not None and self._running.step == step)

    def on_start(self, info: StepInfo) -> None:
        """Probe what the run left when it was ended."""
        self.add_missing(up_to=info.step)
        self._advance()

    def add_missing(self, *, up_to: int) -> None:
        """Let all checkpoints up to a step that lack a score wait for their turn."""
        self._waiting.extend(missing_probes(self._run, up_to=up_to))

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Take a score that has come, and start the next probe."""
        self._advance()

    def on_checkpoint(self, step: int) -> None:
        """Probe it, or let it wait for its turn."""
        if not self._run.is_probed(step):
            return
        self._waiting.append(step)
        self._advance()
        if len(self._waiting) > 1 and not self._is_behind:
            self._is_behind = True
            self._say(
                f"probes take longer than the steps between them: {len(self._waiting)} checkpoints wait, and stay on "
                "the disk until they are probed. A larger probe.every makes fewer."
            )

    def on_end(self, state: RunState) -> None:
        """Wait for the last probes of a run that is finished; one that was stopped makes them when it is resumed."""
        if state.step == self._run.plan.schedule.total_steps:
            self.finish()

    def finish(self) -> None:
        """Wait for all probes, for ten minutes at most."""
        self._advance()
        num_left = len(self._waiting) + (self._running is not None)
        if num_left:
            self._say(f"waiting for {counted(num_left, 'probe')}, at most {_SECONDS_AT_END / 60:.0f} minutes")
        deadline = time.monotonic() + _SECONDS_AT_END
        while self._running is not None and time.monotonic() < deadline and not self._is_stop_requested():
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._advance()
        if self._running is not None:
            steps = ", ".join(f"{step:,}" for step in (self._running.step, *self._waiting))
            self._say(f"no longer waiting for the probe of step {steps}; the same command, run again, makes it")
        if self._num_failed > 1:
            self._say(f"{self._num_failed} probes failed")

    def close(self, error: BaseException | None) -> None:
        """End the probe that is running."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _advance(self) -> None:
        """Take a score that has come, and start the next probe; never waits."""
        if self._running is not None:
            if self._running.is_alive():
                return
            finished, self._running = self._running, None
            self._take(finished)
        if self._waiting:
            step = self._waiting.popleft()
            try:
                self._running = _Process.start(self._folder, step)
            except OSError as error:
                self._fail(step, f"could not start a process: {error.strerror or error}")

    def _take(self, finished: "_Process") -> None:
        score, reason = finished.result()
        if score is None:
            self._fail(finished.step, reason)
            return
        self._report(finished.step, {self._name: score})
        self._say(f"step {finished.step:,}: probe {self._name} {score:.3f}")

    def _fail(self, step: int, reason: str) -> None:
        self._num_failed += 1
        if self._num_failed == 1:
            by_hand = f"python -m {_PROGRAM} {self._folder} {step}"
            self._say(f"the probe of step {step:,} failed: {reason}\nTraining is not affected. To see more: {by_hand}")


def finish_probes(run: DeclaredRun, *, is_stop_requested: Callable[[], bool]) -> None:
    """Make the probes that are missing from a finished run; for rank 0."""
    step = run.plan.schedule.total_steps
    if not missing_probes(run, up_to=step):
        return
    writers, say = open_writers(run, resumed_step=step), partial(print, flush=True)
    probes = ProbeHook(run, report=partial(add_probe, writers), say=say, is_stop_requested=is_stop_requested)
    try:
        probes.add_missing(up_to=step)
        probes.finish()
    finally:
        probes.close(None)
        close_all(writers, None)


@dataclass(frozen=True)
class _Process:
    """The process that probes the checkpoint of a step, and the files that it prints to."""

    step: int
    process: "subprocess.Popen[bytes]"
    printed: IO[bytes]
    errors: IO[bytes]
    files: ExitStack
    """Closes both."""

    @classmethod
    def start(cls, folder: Path, step: int) -> "_Process":
        # One core, whatever the training's ranks were given, and no GPU: its memory belongs to them.
        environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
        with ExitStack() as files:
            # Files, not pipes: nobody reads them before the end, and a full pipe would stop the process.
            printed, errors = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            command = _command(folder, step)
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors
            )
            return cls(step, process, printed, errors, files.pop_all())

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.files.close()

    def result(self) -> tuple[float | None, str]:
        """The score, or None and why there is none."""
        with self.files:
            lines, said = (_text(file).splitlines() for file in (self.printed, self.errors))
        code = self.process.returncode
        if code == 0:
            score = _number(lines[-1] if lines else "")
            return score, "" if score is not None else "it printed no number"
        if code < 0:
            return None, f"signal {-code} ended it"
        # The last line of a traceback, or the whole of a message.
        is_traceback = any(line.startswith("Traceback") for line in said)
        return None, (said[-1] if is_traceback else "\n".join(said)) or f"exit code {code}"


def _command(folder: Path, step: int) -> list[str]:
    return [sys.executable, "-m", _PROGRAM, str(folder), str(step), "--parent", str(os.getpid())]


def _number(line: str) -> float | None:
    """The score in the last line that a probe printed; None if there is none that can be logged."""
    try:
        score = float(json.loads(line)["score"])
    except (ValueError, KeyError, TypeError):
        return None
    return score if math.isfinite(score) else None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace").strip()
