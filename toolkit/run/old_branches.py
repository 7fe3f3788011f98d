"""Branches that earlier versions wrote: their run file has the tail alone, and a table `[branch]` on what came before.

Read, they are forks. Phases stand for the steps before: as many, of the same kinds of objective; how else they were
made is not known, so nothing is compared with the checkpoint that such a branch begins at.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import explain
from toolkit.data import DataSettings
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.schedule import Schedule
from toolkit.run.settings import EVERYTHING, TrainSettings


def as_fork(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain data with `[fork]` and the whole schedule in place of `[branch]`; others as they are.

    A SettingsError where it is no such branch: the table of a tail, for example.
    """
    if "branch" not in raw or not all(isinstance(raw.get(key, {}), Mapping) for key in ("data", "train")):
        return dict(raw)
    branch = raw["branch"]
    if not (isinstance(branch, Mapping) and "from" in branch and isinstance(branch.get("step"), int)):
        raise SettingsError(
            "[branch] names no checkpoint, by from and step: a run file has it where an earlier version of `toolkit "
            "branch` wrote it.\nLeave it out, or give a tail to `toolkit branch` with --config."
        )
    if raw.get("init") is not None:
        raise SettingsError(
            f"[init] names {raw['init'].get('from')} and [branch] {branch['from']}: a branch starts from the "
            "checkpoint it leaves. Leave [init] out."
        )
    tail = _tail(raw)
    tail[0]["optimizer"] = branch.get("optimizer", "keep")
    phases = dict([*_past(branch, tail[0]["objective"]), (branch["step"], tail[0])])
    # The stretch of the learning rate that goes on.
    if (rise := branch.get("ramp_start", 0)) > 0:
        phases[rise] |= {"lr": "rewarm", "lr_peak": branch.get("ramp_peak")}
    fork = {
        "from": branch["from"],
        "step": branch["step"],
        "changed": [EVERYTHING],
        "digest": branch.get("data", "keep"),
        "positions": [branch.get("position", 0), *branch.get("later_positions", ())],
    }
    train = {key: value for key, value in raw.get("train", {}).items() if key != "steps"}
    rest = {key: value for key, value in raw.items() if key != "branch"}
    return rest | {"fork": fork, "train": train, "schedule": [*phases.values(), *tail[1:]]}


def as_now(written: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a run wrote, as this version declares them; no weight depended on `[probe]` of earlier ones."""
    return {key: value for key, value in as_fork(written).items() if key != "probe"}


def _past(branch: Mapping[str, Any], objective: str) -> list[tuple[int, dict[str, Any]]]:
    """Phases before the branch with their first steps; one begins where the learning rate's warm-up did."""
    kinds = [phase["objective"] for phase in branch.get("past", ()) for _ in range(phase["steps"])]
    kinds = [*kinds, *[objective] * branch["step"]][: branch["step"]]
    begun = (0, branch.get("ramp_start", 0))
    starts = [step for step, kind in enumerate(kinds) if step in begun or kind != kinds[step - 1]]
    stops = [*starts[1:], branch["step"]]
    return [
        (start, {"objective": kinds[start], "steps": stop - start}) for start, stop in zip(starts, stops, strict=True)
    ]


def _tail(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The phases of the tail, their lengths as steps."""
    try:
        entries = TypeAdapter(list[PhaseSettings]).validate_python(raw.get("schedule", []))
        train = TrainSettings.model_validate(raw.get("train", {}))
    except ValidationError as error:
        raise SettingsError(explain(error, PhaseSettings)) from None
    length = raw.get("data", {}).get("sequence_length", DataSettings.model_fields["sequence_length"].default)
    schedule = Schedule.resolve(
        entries, total_steps=train.steps, global_batch_rows=train.global_batch_rows, sequence_length=length
    )
    return [
        entry.of_steps(phase.stop - phase.start).model_dump(exclude_none=True)
        for entry, phase in zip(entries, schedule.phases, strict=True)
    ]
