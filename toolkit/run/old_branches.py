"""Branches that earlier versions wrote: their run file has the tail alone, and a table `[branch]` on what came before.

Read, they are forks. Phases stand for the steps before: as many, of the same kinds of objective; how else they were
made is not known, so nothing is compared with the checkpoint that such a branch begins at.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings, explain
from toolkit.data import DataSettings
from toolkit.objectives.schedule import PhaseSettings, Schedule
from toolkit.run.settings import EVERYTHING, TrainSettings


class _PastPhase(Settings):
    objective: str
    """Kind of its objective."""
    steps: int = Field(gt=0)
    """Updates made."""


class _Branch(Settings):
    source: str = Field(alias="from", min_length=1)
    """The checkpoint it starts from."""
    step: int = Field(gt=0)
    """Updates made by then."""
    optimizer: Literal["keep", "reset"] = "keep"
    """Whether the moments of that checkpoint are kept."""
    data: Literal["keep", "reset"] = "keep"
    """Whether the digest goes on."""
    position: int = 0
    """Sample position of the first row."""
    later_positions: list[int] = Field(default_factory=list)
    """Of each later phase: rows that the run before had read of its data."""
    ramp_start: int = 0
    """The step at which the learning rate's warm-up began."""
    ramp_peak: float | None = None
    """The peak that it leads to, where that is not `lr.peak`."""
    past: list[_PastPhase] = Field(default_factory=list)
    """What was trained before, from the first weights on."""


def as_fork(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain data with `[fork]` and the whole schedule in place of `[branch]`; others as they are.

    Raises:
        SettingsError: it is no such branch: the table of a tail, for example.
    """
    if "branch" not in raw or not all(isinstance(raw.get(key, {}), Mapping) for key in ("data", "train")):
        return dict(raw)
    try:
        branch = _Branch.model_validate(raw["branch"])
    except ValidationError as error:
        raise SettingsError(
            f"{explain(error, _Branch, group='branch')}\nA run file has [branch] where an earlier version "
            "of `toolkit branch` wrote it. A tail is given to `toolkit branch` with --config."
        ) from None
    if raw.get("init") is not None:
        raise SettingsError(
            f"[init] names {raw['init'].get('from')} and [branch] {branch.source}: a branch starts from the "
            "checkpoint it leaves. Leave [init] out."
        )
    tail = _tail(raw)
    if branch.optimizer == "reset":
        tail[0]["optimizer"] = "reset"
    past = _past(branch, tail[0]["objective"])
    # The stretch of the learning rate that goes on.
    if branch.ramp_start > 0:
        first = next(phase for start, phase in [*past, (branch.step, tail[0])] if start == branch.ramp_start)
        first |= {"lr": "rewarm"} | ({} if branch.ramp_peak is None else {"lr_peak": branch.ramp_peak})
    fork = {
        "from": branch.source,
        "step": branch.step,
        "changed": [EVERYTHING],
        "digest": branch.data,
        "positions": [branch.position, *branch.later_positions],
    }
    rest = {key: value for key, value in raw.items() if key != "branch"}
    train = {key: value for key, value in raw.get("train", {}).items() if key != "steps"}
    return rest | {"fork": fork, "train": train, "schedule": [*(phase for _, phase in past), *tail]}


def _past(branch: _Branch, objective: str) -> list[tuple[int, dict[str, Any]]]:
    """Phases before the branch with their first steps; one begins where the learning rate's warm-up did."""
    kinds = [phase.objective for phase in branch.past for _ in range(phase.steps)]
    kinds = [*kinds, *[objective] * branch.step][: branch.step]
    starts = [step for step in range(branch.step) if step in (0, branch.ramp_start) or kinds[step] != kinds[step - 1]]
    stops = [*starts[1:], branch.step]
    return [
        (start, {"objective": kinds[start], "steps": stop - start}) for start, stop in zip(starts, stops, strict=True)
    ]


def _tail(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The phases of the tail, their lengths as steps."""
    train = {name: field.default for name, field in TrainSettings.model_fields.items()} | raw.get("train", {})
    length = DataSettings.model_fields["sequence_length"].default
    try:
        entries = TypeAdapter(list[PhaseSettings]).validate_python(raw.get("schedule", []))
    except ValidationError as error:
        raise SettingsError(explain(error, PhaseSettings, group="schedule")) from None
    schedule = Schedule.resolve(
        entries,
        total_steps=train["steps"],
        global_batch_rows=train["global_batch_rows"],
        sequence_length=raw.get("data", {}).get("sequence_length", length),
    )
    return [
        entry.of_steps(phase.stop - phase.start).model_dump(exclude_none=True)
        for entry, phase in zip(entries, schedule.phases, strict=True)
    ]
