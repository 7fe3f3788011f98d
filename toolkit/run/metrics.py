"""RUN_DIR/metrics.jsonl: one JSON object per logged step, never two for one step over the life of a run."""

import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

from toolkit.checkpoint.manifest import read_manifest
from toolkit.core.errors import CheckpointError
from toolkit.core.files import atomic_write
from toolkit.run.folder import RunFolder, found_near
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan

_TAIL_BYTES = 1 << 14
_log = logging.getLogger(__name__)


Losses = Mapping[str, float | Mapping[str, float]]
"""Validation losses by objective: over all corpora, and for each corpus that has a name."""


class Rates(TypedDict, total=False):
    """Speed since the previous line; `mfu` only if the peak of the devices is known."""

    tokens_per_second: float
    model_flops_per_second: float
    mfu: float


class MetricsLine(Rates, total=False):
    """The fields of a line. At step 0 there is an evaluation and no training.

    In a mixture, `losses` are the token means of its objectives, and `targets` are by objective too.
    """

    step: int
    phase: int
    objective: str
    attention: str
    loss: float
    targets: int | Mapping[str, int]
    losses: Mapping[str, float]
    tokens: int
    learning_rate: float
    grad_norm: float
    data_digest: str
    eval_loss: Losses
    spike: Literal["told", "skipped"]


_CURVES = ("learning_rate", "grad_norm", *Rates.__annotations__)


def scalars(line: MetricsLine) -> dict[str, float]:
    """A line's point on each curve, by curve name. Losses are by objective, so that a switch shows."""
    named: dict[str, float] = {}
    if "loss" in line:
        named[f"loss/{line['objective']}"] = line["loss"]
    named |= {f"loss/{name}": loss for name, loss in line.get("losses", {}).items()}
    values = cast("dict[str, float]", line)
    named |= {name: values[name] for name in _CURVES if name in values}
    for corpus, losses in by_corpus(line.get("eval_loss", {})).items():
        named |= {"/".join(filter(None, ("validation", corpus, name))): loss for name, loss in losses.items()}
    return named


def by_corpus(losses: Losses) -> dict[str, Mapping[str, float]]:
    """Validation losses by objective for each corpus; the first, with an empty name, are over all corpora."""
    corpora = {name: found for name, found in losses.items() if isinstance(found, Mapping)}
    return {"": {name: loss for name, loss in losses.items() if not isinstance(loss, Mapping)}, **corpora}


class MetricsFile:
    """Appends lines, each flushed to disk before the next step.

    Opening it for a run that is resumed from `resumed_step` moves the lines past that step, which the run will write
    again, to `metrics.superseded.jsonl`; a fresh start (None) moves all lines of an earlier attempt.
    """

    def __init__(self, folder: RunFolder, *, resumed_step: int | None) -> None:
        self.path = folder.metrics_file
        if self.path.exists():
            self._supersede(folder.superseded_metrics_file, resumed_step)

    def append(self, line: MetricsLine) -> None:
        """Append a line: whole, or not at all after an error, so that it can be retried."""
        left = memoryview((json.dumps(dict(line), allow_nan=False) + "\n").encode())
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def close(self, error: BaseException | None) -> None:
        """Do nothing: each line is on the disk."""

    def _supersede(self, superseded: Path, resumed_step: int | None) -> None:
        kept: list[str] = []
        moved: list[str] = []
        for line in _lines_of(self.path):
            content = _content_of(line)
            is_kept = content is not None and resumed_step is not None and content["step"] <= resumed_step
            (kept if is_kept else moved).append(line)
        if moved:
            with superseded.open("a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in moved)
                file.flush()
                os.fsync(file.fileno())
        elif self.path.read_bytes().endswith(b"\n"):
            return
        # Also if the last line has no newline: the next one would be appended to it.
        atomic_write(self.path, "".join(line + "\n" for line in kept))


def read_lines(folder: RunFolder) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl in order, without damaged ones; empty if there is no file."""
    if not folder.metrics_file.is_file():
        return []
    return list(filter(None, map(_content_of, _lines_of(folder.metrics_file))))


class History(NamedTuple):
    """Lines of a run and of the runs that it continues, each up to the fork of the next one."""

    lines: list[dict[str, Any]]
    is_whole: bool
    """Whether all of those runs exist, with a line for the step of the fork."""


def history(folder: RunFolder, settings: Mapping[str, Any]) -> History:
    """The lines of a run's whole life; its settings are plain data, as in a manifest. Missing runs are logged."""
    own, fork = read_lines(folder), settings.get("fork")
    if not isinstance(fork, Mapping):
        return History(own, True)
    checkpoint = found_near(fork["from"], folder.path)
    try:
        before, is_whole = history(RunFolder(checkpoint.parent.parent), read_manifest(checkpoint).settings)
    except CheckpointError:
        _tell_gone(folder.path, fork["from"], fork["step"])
        return History(own, False)
    made = [line for line in before if line["step"] <= fork["step"]]
    is_left_there = any(line["step"] == fork["step"] and "loss" in line for line in made)
    return History([*made, *own], is_whole and is_left_there)


@cache
def _tell_gone(run: Path, source: str, step: int) -> None:
    """Log a missing run, once per process."""
    _log.warning(
        "%s goes on from %s, which is neither there nor beside it: its lines up to step %d are left out, and FLOPs",
        *(run, source, step),
    )


class BestStep(NamedTuple):
    """The step of the lowest validation loss."""

    loss: float
    step: int


def best_step(
    folder: RunFolder, settings: RunSettings, corpora: Mapping[str, str], *, up_to: float = math.inf
) -> BestStep | None:
    """The best step by `checkpoint.keep_best` that has a checkpoint; None without either. Only losses on validation
    corpora with these hashes and the same `eval.rows` count.
    """
    if (by := settings.best_by) is None:
        return None
    losses = {line["step"]: line["eval_loss"].get(by) for line in read_lines(folder) if "eval_loss" in line}
    rows, found = settings.eval.rows, list[BestStep]()
    for step, path in folder.steps():
        with suppress(CheckpointError):
            saved = read_manifest(path)
            is_same = _validation(saved.corpora) == _validation(corpora) and saved.table("eval").get("rows") == rows
            if is_same and 0 < step <= up_to and (loss := losses.get(step)) is not None:
                found.append(BestStep(loss, step))
    return min(found, default=None)


def _validation(corpora: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in corpora.items() if key.startswith("data.validation")}


def last_trained_line(folder: RunFolder) -> dict[str, Any] | None:
    """The newest line of a training step; None if absent. Usually only the end of the file is read."""
    if not folder.metrics_file.is_file():
        return None
    for read in (_last_lines_of, _lines_of):
        for line in reversed(read(folder.metrics_file)):
            if (content := _content_of(line)) is not None and "loss" in content:
                return content
    return None


def positions_per_second(plan: StepPlan, line: Mapping[str, Any]) -> float | None:
    """Positions per second at a line, including padding, without evaluation and saving; None if unknown."""
    made, rate = plan.positions(line["step"]), line.get("tokens_per_second")
    return float(rate * max(made / line["tokens"], 1.0)) if made and rate and line["tokens"] else None


def _last_lines_of(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read().decode(errors="replace").splitlines()


def _lines_of(path: Path) -> list[str]:
    """Lines of a file. After a power cut it may contain any bytes; they must neither stop a resume nor hide a run."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _content_of(line: str) -> dict[str, Any] | None:
    """The content of a line; None if the line was cut off in writing, or is not a metrics line."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    is_line = isinstance(content, dict) and isinstance(content.get("loss", 0.0), float | int)
    return content if is_line and isinstance(content.get("step"), int) else None
