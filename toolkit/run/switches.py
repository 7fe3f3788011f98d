"""Switches of objective, from validation losses: does the old one still improve, and when does the new one catch up?

It catches up with a run of only that objective. Losses of the two are compared after equally many positions; if that
run was not evaluated there, by linear interpolation between its evaluations.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import linear_regression
from typing import Any, NamedTuple

import numpy as np

from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.objectives.schedule import Phase
from toolkit.run.folder import RunFolder
from toolkit.run.identity import flat, is_free, snapshot
from toolkit.run.load import read_without_objectives
from toolkit.run.metrics import history
from toolkit.run.step_plan import StepPlan
from toolkit.run.toml_files import read_toml

_FEWEST = 3
_OF_THE_COURSE = ("schedule", "train.steps", "fork", "objectives")
_OF_VALIDATION = ("data.validation", "data.sequence_length", "data.windows", "data.min_length", "eval.rows")

# The name that a branch gives to an objective of its trunk that its tail redefines.
_RENAMED = re.compile(r"(.+)-to-(\d+)")


class EvaluatedRun(NamedTuple):
    """A run by name, with the lines of its whole life that have validation losses."""

    name: str
    plan: StepPlan
    settings: dict[str, Any]
    """Settings of its run.toml by dotted key."""
    lines: list[dict[str, Any]]

    def losses(self, name: str) -> dict[int, float]:
        """Validation losses of an objective by step."""
        found = {line["step"]: line["eval_loss"].get(_name_in(line, name)) for line in self.lines}
        return {step: loss for step, loss in found.items() if isinstance(loss, int | float)}

    def has_only(self, name: str) -> bool:
        """Return whether it trains only this objective."""
        return all(phase.objectives == (name,) for phase in self.plan.schedule.phases)

    def like(self, name: str) -> dict[str, Any]:
        """Settings shared with a run of the same number of positions that differs only in its schedule."""
        own = {
            key: value for key, value in self.settings.items() if not (is_free(key) or key.startswith(_OF_THE_COURSE))
        }
        own |= {key: value for key, value in self.settings.items() if key.startswith(f"objectives.{name}.")}
        own |= self.validation(name)
        return own | {"positions": self.plan.positions(self.plan.schedule.total_steps)}

    def validation(self, name: str) -> dict[str, Any]:
        """Settings that determine the rows and targets over which a loss is averaged."""
        keys = (*_OF_VALIDATION, f"objectives.{name}.mask_ratio")
        return {key: value for key, value in self.settings.items() if key.startswith(keys)}


def _name_in(line: dict[str, Any], name: str) -> str:
    """The name of an objective in a line, which may be a trunk's: `mlm` of `mlm-to-8-to-16`."""
    renamed = _RENAMED.fullmatch(name)
    if name in line["eval_loss"] or renamed is None or line["step"] > int(renamed[2]):
        return name
    return _name_in(line, renamed[1])


def evaluated_run(folder: RunFolder) -> EvaluatedRun:
    """The run in a folder, in progress or finished."""
    settings = read_without_objectives(folder.settings_file)
    lines = [line for line in history(folder, snapshot(settings)).lines if "eval_loss" in line]
    return EvaluatedRun(str(folder.path), StepPlan(settings), flat(read_toml(folder.settings_file)), lines)


def switches_of_runs(folders: Sequence[RunFolder]) -> Iterator[str]:
    """Lines on the switches of runs, each compared with the runs of a single objective that otherwise equal it."""
    runs = list[EvaluatedRun]()
    for folder in folders:
        # Their curves are drawn even if run.toml is damaged or missing.
        with suppress(UserError, OSError):
            runs.append(evaluated_run(folder))
    alone = {index: one.plan.schedule.phases[0].objective for index, one in enumerate(runs)}
    for run in runs:
        others = [other for index, other in enumerate(runs) if other.like(alone[index]) == run.like(alone[index])]
        yield from (f"{run.name}: {line}" for line in switch_lines(run, others))


def switch_lines(run: EvaluatedRun, others: Sequence[EvaluatedRun]) -> Iterator[str]:
    """Lines on each switch that the run has reached, compared with those of the others that have one objective."""
    reached, phases = max((line["step"] for line in run.lines), default=0), run.plan.schedule.phases
    for before, after in pairwise(phases):
        if set(before.objectives) == set(after.objectives) or reached < before.stop:
            continue
        for name in before.objectives:
            if name not in after.objectives:
                yield f"switch to {after.objective} at step {before.stop:,}: {_trend(run.losses(name), before, name)}"
        for name in after.objectives:
            # Up to the phase without it, since phases in between may differ only in their data or rates.
            stop = next((phase.start for phase in phases[after.index :] if name not in phase.objectives), reached)
            steps = range(after.start + 1, stop + 1)
            yield from (line for other in others if other.has_only(name) for line in _catch_up(run, other, steps, name))


def _trend(losses: dict[int, float], phase: Phase, name: str) -> str:
    """The slope of a loss over the second half of a phase and the scatter around it, in words."""
    first = phase.start + (phase.stop - phase.start) // 2
    points = [(step, loss) for step, loss in losses.items() if first <= step <= phase.stop]
    where = f"{counted(len(points), 'evaluation')} from step {first:,} on"
    if len(points) < _FEWEST:
        return f"{where}, too few to say whether the validation loss of {name} still falls (eval.every)"
    steps = [step for step, _ in points]
    slope, start = linear_regression(steps, [loss for _, loss in points])
    scatter = sum((loss - start - slope * step) ** 2 for step, loss in points) / (len(points) - 2)
    error = 2 * (scatter / (len(points) * float(np.var(steps)))) ** 0.5
    verdict = "is level within its scatter" if abs(slope) <= error else "still falls" if slope < 0 else "rises"
    shown = f"{1000 * slope:+.4f} a 1,000 steps, ± {1000 * error:.4f} (two standard errors)"
    return f"the validation loss of {name} {verdict}: {shown}, by {where}"


def _catch_up(run: EvaluatedRun, other: EvaluatedRun, steps: range, name: str) -> Iterator[str]:
    """A line on the first of the steps from which a loss stays at or below another run's, if they can be compared."""
    theirs = other.losses(name)
    places = [other.plan.positions(step) for step in theirs]
    gaps = dict[int, float]()
    for step, loss in run.losses(name).items():
        place = run.plan.positions(step)
        if step in steps and places and places[0] <= place <= places[-1]:
            gaps[step] = loss - float(np.interp(place, places, list(theirs.values())))
    if not gaps:
        return
    first, last, switch = min(gaps), max(gaps), steps[0] - 1
    end = f"its validation loss at step {last:,} is {abs(gaps[last]):.4f} {'higher' if gaps[last] > 0 else 'lower'}"
    ours, other_rows = run.validation(name), other.validation(name)
    if differing := [key for key in sorted(ours.keys() | other_rows.keys()) if ours.get(key) != other_rows.get(key)]:
        end += f" (not of the same rows or targets: {', '.join(differing)})"
    caught = next((step for step in gaps if all(gaps[later] <= 0 for later in gaps if later >= step)), None)
    if caught is None:
        yield f"{name} has not caught up with {other.name} within {counted(last - switch, 'step')}: {end}"
        return
    tokens = next(line["tokens"] for line in run.lines if line["step"] == caught)
    share = run.plan.positions(caught) / run.plan.positions(run.plan.schedule.total_steps)
    when = f"by step {caught:,}, the first that is compared" if caught == first else f"at step {caught:,}"
    after = f"{counted(caught - switch, 'step')} after the switch, {tokens:,} tokens and {share:.0%} of the run"
    yield f"{name} catches up with {other.name} {when} ({after}); {end}"
