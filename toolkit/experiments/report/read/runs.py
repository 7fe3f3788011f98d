"""Loss curves of run folders, from their metrics."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.core.errors import CheckpointError, UserError
from toolkit.experiments.report.read.manifests import start_of
from toolkit.run.folder import RunFolder, found_near
from toolkit.run.identity import kind_of, settings_in
from toolkit.run.metrics import by_corpus, history, read_lines
from toolkit.run.step_plan import schedule_of

Curve = tuple[tuple[float, float], ...]
"""(step, loss) pairs, in order."""


@dataclass(frozen=True)
class RunCurves:
    """Losses of one run, and the steps after which the objective changed."""

    name: str
    folder: Path
    training: Curve
    held_out: Mapping[tuple[str, str], Curve]
    """Curves by (objective, corpus); the corpus "" stands for the mean over all corpora."""
    switches: tuple[int, ...]
    settings: str | None
    """Text of run.toml."""
    start: str | None
    """The checkpoint or model that it started from; None for random weights."""

    @property
    def title(self) -> str:
        """The name, and what the run started from."""
        return self.name if self.start is None else f"{self.name}, from {self.start}"


def repeats(runs: Sequence[RunCurves]) -> list[tuple[str, list[RunCurves]]]:
    """Runs that differ only in seed, by the shared part of their names; other runs one by one, by title.

    Runs of a group have reached the same step, as their mean would end with the shortest.
    """
    groups = dict[tuple[str, float], list[RunCurves]]()
    for run in runs:
        groups.setdefault((_without_seed(run), max((step for step, _ in run.training), default=0.0)), []).append(run)
    return [(_shared_name(found) if len(found) > 1 else found[0].title, found) for found in groups.values()]


def _without_seed(run: RunCurves) -> str:
    """Settings shared by runs that differ only in seed: everything except the seed, the folder and the fork source."""
    settings = {} if run.settings is None else tomllib.loads(run.settings)
    if "seed" not in settings.get("run", {}):
        return run.name
    for table, key in (("run", "seed"), ("run", "dir"), ("fork", "from")):
        settings.get(table, {}).pop(key, None)
    return json.dumps(settings, sort_keys=True, default=str)


def _shared_name(runs: Sequence[RunCurves]) -> str:
    names = {re.sub(r"[-_. ]*(seed)?[-_=. ]*\d+$", "", run.name) for run in runs}
    return names.pop() or runs[0].name if len(names) == 1 else f"{runs[0].name} and {len(runs) - 1} more"


def is_run(folder: Path) -> bool:
    """True if a run has written its settings or metrics there."""
    run = RunFolder(folder)
    return run.metrics_file.is_file() or run.settings_file.is_file()


def read_runs(folders: Sequence[Path]) -> list[RunCurves]:
    """Curves of the runs that have any, named after their folders."""
    names = [folder.resolve().name for folder in folders]
    runs = [
        _read_run(folder, name if names.count(name) == 1 else str(folder), {one.resolve() for one in folders})
        for folder, name in zip(folders, names, strict=True)
    ]
    return [run for run in runs if run.training or run.held_out]


def _read_run(folder: Path, name: str, drawn: set[Path]) -> RunCurves:
    """Curves of a run with the runs that it continues, unless these are drawn as runs of their own."""
    run = RunFolder(folder)
    try:
        lines = read_lines(run)
        settings = run.settings_file.read_text(encoding="utf-8") if run.settings_file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"could not read the run {folder}: {error}. Make its files readable.") from error
    start, first_switch = None, tuple[int, ...]()
    # Losses are drawn even without a checkpoint.
    with suppress(CheckpointError):
        manifest = run.newest_manifest()
        if manifest is not None and manifest.origin:
            start = start_of(manifest)
        made_by = None if manifest is None else settings_in(manifest)
        if manifest is not None and made_by is not None and (fork := made_by.fork) is not None:
            # Its checkpoint is RUN/checkpoints/step-NNNNNNNN.
            trunk = found_near(fork.source, folder).parents[1]
            start = f"{trunk.name} step {fork.step}"
            if trunk.resolve() not in drawn:
                lines = history(run, manifest.settings).lines
            before = schedule_of(made_by).phase_at(fork.step - 1).objective
            first = next((line for line in lines if "loss" in line), dict[str, Any]())
            is_cut = first.get("step", 0) > fork.step
            if is_cut and kind_of(manifest, before) != kind_of(manifest, str(first.get("objective"))):
                first_switch = (fork.step,)
    training = _curve((line["step"], _per_target(line)) for line in lines)
    return RunCurves(name, folder, training, _held_out(lines), (*first_switch, *_switches(lines)), settings, start)


def _switches(lines: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    trained = [line for line in lines if "loss" in line]
    for before, after in pairwise(trained):
        if before.get("objective") != after.get("objective"):
            yield before["step"]


def _held_out(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Curve]:
    evaluated = [(line["step"], _evaluation(line)) for line in lines]
    keys = dict.fromkeys(key for _, losses in evaluated for key in losses)
    curves = {key: _curve((step, losses.get(key)) for step, losses in evaluated) for key in keys}
    return {key: curve for key, curve in curves.items() if curve}


def _per_target(line: Mapping[str, Any]) -> Any:
    """Mean cross-entropy over a step's targets; the logged loss of a mixture weights its objectives instead."""
    if not (losses := line.get("losses")):
        return line.get("loss")
    targets = line["targets"]
    return sum(losses[name] * targets[name] for name in losses) / sum(targets[name] for name in losses)


def _evaluation(line: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    found = line.get("eval_loss")
    losses = by_corpus(found if isinstance(found, dict) else {})
    return {(name, corpus): loss for corpus, found in losses.items() for name, loss in found.items()}


def _curve(pairs: Any) -> Curve:
    return tuple((float(step), float(loss)) for step, loss in pairs if isinstance(loss, int | float))
