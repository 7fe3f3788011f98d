"""Plan of the steps of a run, as pure functions of the step: phase, rows, learning rate."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from toolkit.core.errors import SettingsError
from toolkit.core.settings import validated
from toolkit.core.text import counted
from toolkit.core.types import IntArray
from toolkit.data import DataSettings
from toolkit.engine.lr import LearningRateSettings, learning_rate_at
from toolkit.model.config import ModelSettings
from toolkit.objectives.mixture import dealt_rows
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.schedule import Phase, Schedule
from toolkit.run.settings import RunSettings

FREE_IN_PHASES = ("rope_theta", "local_rope_theta", "rope_scaling", "max_position_embeddings")
"""Keys of `[model]` that a phase may override."""


def schedule_of(settings: RunSettings) -> Schedule:
    """The phases with their first and last steps."""
    return Schedule.resolve(
        settings.schedule,
        total_steps=settings.train.steps,
        global_batch_rows=settings.train.global_batch_rows,
        sequence_length=settings.data.sequence_length,
    )


def changed_data(shared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`[data]` with other keys on top; its `weights` are dropped if another `train` does not take any."""
    train = given.get("train", ())
    entries = train if isinstance(train, list | tuple) else [{"weight": 1.0}]
    takes_weights = all(isinstance(entry, dict) and entry.get("weight") is None for entry in entries)
    return {**shared, **({} if takes_weights else {"weights": None}), **given}


def _data_of(phase: PhaseSettings, shared: dict[str, object], number: int) -> DataSettings:
    """`[data]` as a phase has it: its own keys win."""
    group = f"schedule.{number}.data"
    if phase.data is not None and "validation" in phase.data:
        raise SettingsError(f"{group}.validation: validation rows are one set for the whole run. Set data.validation.")
    return validated(DataSettings, changed_data(shared, phase.data or {}), group=group)


def _model_of(phase: PhaseSettings, shared: ModelSettings, number: int) -> ModelSettings:
    """`[model]` as a phase has it: rotary embeddings may differ, since no weight's shape depends on them."""
    if phase.model is None:
        return shared
    group = f"schedule.{number}.model"
    if fixed := sorted(phase.model.keys() - FREE_IN_PHASES):
        raise SettingsError(
            f"{group}.{fixed[0]}: a phase may have other values of {', '.join(FREE_IN_PHASES)}; the rest of [model] "
            "is one for the whole run.\nLeave the key out, or give it in [model]."
        )
    if number == 0:
        raise SettingsError(f"{group}: nothing comes before the first phase. Give its keys in [model].")
    return validated(ModelSettings, shared.model_dump() | phase.model, group=group)


@dataclass(frozen=True)
class Stretch:
    """Updates `start` to `stop` - 1 with one warm-up, one stable part and one decay of the learning rate."""

    start: int
    stop: int
    settings: LearningRateSettings
    planned_stop: int
    """Planned end; later than `stop` if a branch left it early."""

    @property
    def num_steps(self) -> int:
        """Number of updates that it was planned for."""
        return self.planned_stop - self.start

    def describe(self) -> str:
        """Its end, and its planned end if later; shape, lengths and peak in words."""
        of = f" of {self.planned_stop:,}" if self.planned_stop > self.stop else ""
        return f"to step {self.stop:,}{of}: {self.settings.describe(self.num_steps)}"


class StepPlan:
    """The steps of a run, without any state, so that a resume cannot end up anywhere else.

    `data` and `models` are by phase, `stretches` those of the learning rate; `first_step` is the number of updates
    before the run's fork, which are not its own.
    """

    def __init__(self, settings: RunSettings) -> None:
        # First: lengths in tokens are counted in rows of these data, which are checked here.
        shared = settings.data.model_dump(exclude={"validation"})
        phases = list(enumerate(settings.schedule))
        # Without `validation`, which belongs to the run.
        self.data = tuple(_data_of(phase, shared, number) for number, phase in phases)
        self.models = tuple(_model_of(phase, settings.model, number) for number, phase in phases)
        firsts = dict[DataSettings, int]()
        self.first_on_data = [firsts.setdefault(data, number) for number, data in enumerate(self.data)]
        """For each phase, the first phase that reads the same data."""
        self.schedule = schedule_of(settings)
        fork = settings.fork
        self.first_step = 0 if fork is None else fork.step
        phases_left = (phase for phase in self.schedule.phases if phase.stop > self.first_step)
        self.own_data = list(dict.fromkeys(self.first_on_data[phase.index] for phase in phases_left))
        """The phases of `first_on_data` whose data the run's own steps read."""
        self._read_before = self._rows_read()
        self._dealt: dict[int, IntArray] = {}
        self.sequence_length = settings.data.sequence_length
        self._phases = settings.schedule
        if self.first_step >= self.schedule.total_steps:
            raise SettingsError(
                f"fork.step={self.first_step:,} is not before the end of the schedule, which has "
                f"{counted(self.schedule.total_steps, 'step')}.\nFork earlier, or make the schedule longer."
            )
        self.stretches = self._stretches(settings)
        for stretch in self.stretches:
            stretch.settings.ramps(stretch.num_steps)

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Positions of a step, for each size in each phase."""
        return tuple(
            size * data.sequence_length
            for phase, data in zip(self.schedule.phases, self.data, strict=True)
            for size in phase.rows.sizes
        )

    def rows_of(self, phase: Phase) -> int:
        """Rows in those steps of a phase that are the run's own."""
        return phase.rows_before(phase.stop) - phase.rows_before(self.first_step)

    def positions(self, step: int) -> int:
        """Positions, padding included, of the first `step` updates."""
        return sum(
            phase.rows_before(step) * data.sequence_length
            for phase, data in zip(self.schedule.phases, self.data, strict=True)
        )

    def rows_at(self, step: int) -> int:
        """Rows of the update with 0-based index `step`."""
        phase = self.schedule.phase_at(step)
        return phase.rows.at(step - phase.start)

    def dealt(self, step: int) -> IntArray:
        """Rows of each objective in the update with 0-based index `step`."""
        phase = self.schedule.phase_at(step)
        if len(phase.mix) == 1:
            return np.array([self.rows_at(step)])
        if phase.index not in self._dealt:
            sizes = [phase.rows.at(number) for number in range(phase.planned_steps)]
            self._dealt[phase.index] = dealt_rows(phase.mix, sizes)
        rows_P: IntArray = self._dealt[phase.index][step - phase.start]
        return rows_P

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Factor of each objective's token mean in the loss of the update with 0-based index `step`: its weight times
        its fraction of the rows dealt there, which averages to its share over the steps.
        """
        phase, rows = self.schedule.phase_at(step), self.rows_at(step)
        return tuple(
            entry.weight * (own / rows) for entry, own in zip(phase.mix, self.dealt(step).tolist(), strict=True)
        )

    def describe_changes(self, phase: Phase) -> str:
        """Text to follow the name of a phase, on how it differs from the run; empty if it does not."""
        entry, data, rows = self._phases[phase.index], self.data[phase.index], phase.rows
        changes = []
        if entry.data or entry.global_batch_rows:
            changes.append(f"{rows.full:,} rows of {data.sequence_length:,} a step")
        if rows.warmup:
            steps = counted(rows.warmup_steps, "step")
            changes.append(f"over {steps} from {rows.sizes[0]:,} to {rows.full:,} rows a step")
        if "train" in (entry.data or {}):
            changes.append(f"on {data.train if isinstance(data.train, str) else 'a blend of its own'}")
        if data.weights is not None and "weights" in (entry.data or {}):
            changes.append(f"temperature {data.weights.temperature:g}")
        changes += [f"{key} {value}" for key, value in (entry.model or {}).items()]
        if entry.lr == "rewarm":
            changes.append("the learning rate warms up again")
        if entry.optimizer == "reset":
            changes.append("the optimizer is reset")
        return "".join(f", {change}" for change in changes)

    def position(self, step: int) -> int:
        """Sample position of the first row of the update with 0-based index `step`: rows of all earlier steps on the
        same data. At the end of the schedule, the position of the row that would come next.
        """
        phase = self.schedule.phase_at(min(step, self.schedule.total_steps - 1))
        return self._read_before[phase.index] + phase.rows_before(step)

    def _rows_read(self) -> list[int]:
        """For each phase, the rows of its data that earlier phases read."""
        read, before = Counter[int](), []
        for phase, first in zip(self.schedule.phases, self.first_on_data, strict=True):
            before.append(read[first])
            read[first] += phase.rows_before(phase.stop)
        return before

    def learning_rate(self, step: int) -> float:
        """Learning rate of the update with 0-based index `step`."""
        stretch = self.stretch_at(step)
        return learning_rate_at(step - stretch.start, stretch.settings, total_steps=stretch.num_steps)

    def stretch_at(self, step: int) -> Stretch:
        """The stretch of the learning rate that the update with 0-based index `step` belongs to."""
        return next(stretch for stretch in self.stretches if step < stretch.stop)

    def has_decayed(self, step: int) -> bool:
        """Return whether, after `step` updates, the learning rate has left the peak of their last stretch for good."""
        stretch = next(stretch for stretch in self.stretches if step <= stretch.stop)
        _, decay = stretch.settings.ramps(stretch.num_steps)
        return step > stretch.planned_stop - decay

    def describe_learning_rate(self) -> str:
        """Shape, lengths and peak of each stretch, in words."""
        first, *others = self.stretches
        if not others:
            return first.settings.describe(first.num_steps)
        return "; ".join(stretch.describe() for stretch in self.stretches)

    def model_at(self, step: int) -> ModelSettings:
        """`[model]` of the update with 0-based index `step`."""
        return self.models[self.schedule.phase_at(step).index]

    def phase_settings(self, step: int) -> dict[str, dict[str, Any]]:
        """Keys that the phase of the update with 0-based index `step` overrides, by table."""
        entry = self._phases[self.schedule.phase_at(step).index]
        return {name: given for name, given in (("data", entry.data), ("model", entry.model)) if given}

    def resets_optimizer(self, step: int) -> bool:
        """Return whether the optimizer's moments are set to zero before the update with 0-based index `step`."""
        phase = self.schedule.phase_at(step)
        return step == phase.start and self._phases[phase.index].optimizer == "reset"

    def _stretches(self, settings: RunSettings) -> tuple[Stretch, ...]:
        own: dict[int, dict[str, float]] = {0: {}}
        planned = dict[int, int]()
        for phase, entry in zip(self.schedule.phases, self._phases, strict=True):
            if entry.lr == "rewarm":
                if settings.lr.kind != "wsd" and entry.lr_decay_steps is not None:
                    raise SettingsError(
                        f'schedule.{phase.index}.lr_decay_steps={entry.lr_decay_steps} is of kind "wsd", and '
                        f'lr.kind="{settings.lr.kind}". Leave it out, or set lr.kind = "wsd".'
                    )
                given = {key: getattr(entry, f"lr_{key}") for key in ("peak", "warmup_steps", "decay_steps")}
                own[phase.start] = {key: value for key, value in given.items() if value is not None}
            if entry.lr_planned_to is not None:
                planned[phase.stop] = entry.lr_planned_to
        if wrong := sorted(stop for stop, end in planned.items() if stop not in own or end < stop):
            raise SettingsError(
                f"lr_planned_to={planned[wrong[0]]} in the phase that ends at step {wrong[0]:,}: it is a later step, "
                'and the next phase has lr = "rewarm".\nLeave it out.'
            )
        return tuple(
            Stretch(start, stop, settings.lr.model_copy(update=own[start]), planned.get(stop, stop))
            for start, stop in pairwise([*own, self.schedule.total_steps])
        )
