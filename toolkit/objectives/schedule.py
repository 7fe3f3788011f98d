"""Schedule of objectives: a list of phases, and a pure function of the step.

Lengths are steps (epochs are converted to steps beforehand), tokens (positions: a step is global_batch_rows x
sequence_length of them, rounded up to whole steps) or fractions of the whole budget. Nothing here has state, so no
resume can land in the wrong phase.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.objectives.mixture import MixEntry, alone
from toolkit.objectives.phase_settings import PhaseSettings


@dataclass(frozen=True)
class PhaseRows:
    """Rows per step of a phase: the increasing sizes of a batch-size warm-up, then G."""

    full: int
    """G."""
    warmup: tuple[tuple[int, int], ...] = ()
    """(rows of a step, number of such steps), with rows below G and increasing."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows per step, each size once."""
        return (*(rows for rows, _ in self.warmup), self.full)

    @property
    def warmup_ends(self) -> list[int]:
        """Steps after which each size of the warm-up ends."""
        return list(accumulate(steps for _, steps in self.warmup))

    @property
    def warmup_steps(self) -> int:
        """Number of steps with fewer rows than G."""
        return sum(steps for _, steps in self.warmup)

    def at(self, step: int) -> int:
        """Rows of the step with 0-based index `step` in the phase."""
        sizes = zip(self.warmup, self.warmup_ends, strict=True)
        return next((rows for (rows, _), stop in sizes if step < stop), self.full)

    def before(self, step: int) -> int:
        """Rows of the first `step` steps of the phase."""
        read = 0
        for rows, steps in self.warmup:
            read, step = read + rows * min(step, steps), max(step - steps, 0)
        return read + self.full * step

    def steps_for(self, num_rows: int) -> int:
        """Fewest steps that have at least `num_rows` rows."""
        left = num_rows - self.before(self.warmup_steps)
        if left >= 0:
            return self.warmup_steps + math.ceil(left / self.full)
        return next(step for step in range(self.warmup_steps) if self.before(step) >= num_rows)


@dataclass(frozen=True)
class Phase:
    """A stretch of steps with one mix of objectives: updates `start` to `stop` - 1, counted from 0 over the run."""

    index: int
    mix: tuple[MixEntry, ...]
    start: int
    stop: int
    rows: PhaseRows
    longer: int | None = None
    """Steps that it was planned for, if a branch left it earlier."""

    @property
    def planned_steps(self) -> int:
        """Steps over which values that change during the phase do so."""
        return self.longer or self.stop - self.start

    @property
    def objective(self) -> str:
        """Names of its objectives, joined by +."""
        return "+".join(self.objectives)

    @property
    def shares(self) -> str:
        """Its objectives in words, with their shares and weights; only the name of one that has neither."""
        return self.objective if self.mix == alone(self.objective) else " + ".join(str(entry) for entry in self.mix)

    @property
    def objectives(self) -> tuple[str, ...]:
        """Name of each of its objectives."""
        return tuple(entry.objective for entry in self.mix)

    def progress_at(self, step: int) -> float:
        """Progress of update `step` in the phase: 0 at the first and 1 at the last planned one; 1 if only one."""
        return (step - self.start) / (self.planned_steps - 1) if self.planned_steps > 1 else 1.0

    def mean_share(self, entry: MixEntry, *, stop: int | None = None) -> float:
        """Share of the rows that an entry of its mix has, over its steps up to `stop`; None: over all."""
        last = (self.stop if stop is None else min(stop, self.stop)) - 1
        return (entry.share_at(self.progress_at(self.start)) + entry.share_at(self.progress_at(last))) / 2

    def rows_before(self, step: int) -> int:
        """Rows of the phase in the first `step` updates of the run."""
        return self.rows.before(max(min(step, self.stop) - self.start, 0))


@dataclass(frozen=True)
class Schedule:
    """The phases of a run, consecutive and without gaps."""

    phases: tuple[Phase, ...]

    @classmethod
    def resolve(
        cls,
        phases: Sequence[PhaseSettings],
        *,
        total_steps: int | None,
        global_batch_rows: int,
        sequence_length: int,
    ) -> "Schedule":
        """Convert lengths to steps.

        `total_steps` (`train.steps`) is the budget that fractions divide; without fractions it may be None. Rows per
        step and positions per row apply to phases that do not set their own.
        """
        if not phases:
            raise SettingsError("the schedule is empty. Give at least one [[schedule]] with an objective and a length.")
        lengths = [(phase.data or {}).get("sequence_length", sequence_length) for phase in phases]
        rows = [
            _rows_of(phase, number, phase.global_batch_rows or global_batch_rows, length)
            for number, (phase, length) in enumerate(zip(phases, lengths, strict=True), start=1)
        ]
        if any(phase.fraction is not None for phase in phases):
            stops = _stops_of_fractions(phases, total_steps)
        else:
            stops = _stops_of_lengths(phases, total_steps, rows, lengths)
        if (first := phases[0]).lr == "rewarm" or first.optimizer == "reset":
            raise SettingsError(
                f"phase 1 of the schedule ({first.name}) has lr = {first.lr!r} and optimizer = "
                f"{first.optimizer!r}: nothing comes before it.\nLeave both out; what happens to other weights is said "
                "by init.optimizer, or by [branch] of a tail."
            )
        found = []
        for index, (phase, start, stop) in enumerate(zip(phases, [0, *stops[:-1]], stops, strict=True)):
            if start == stop:
                raise SettingsError(
                    f"phase {index + 1} of the schedule ({phase.name}, fraction {phase.fraction}) gets none of "
                    f"train.steps = {total_steps}. Raise its fraction or train.steps."
                )
            planned = phase.planned_steps or stop - start
            if planned < stop - start:
                raise SettingsError(
                    f"schedule.{index}.planned_steps={planned} is less than the phase has, {stop - start}.\n"
                    "Leave it out, or give the steps that a longer phase had, of which this one is the beginning."
                )
            if planned < (ramp := rows[index].warmup_steps):
                raise SettingsError(
                    f"phase {index + 1} of the schedule ({phase.name}) has {counted(stop - start, 'step')}, and its "
                    f"batch-size warm-up takes {counted(ramp, 'step')}.\nLower batch_warmup_tokens, or make the phase "
                    "longer."
                )
            found.append(Phase(index, phase.entries, start, stop, rows[index], phase.planned_steps))
        return cls(tuple(found))

    @property
    def total_steps(self) -> int:
        """Number of updates in the whole run."""
        return self.phases[-1].stop

    def phase_at(self, step: int) -> Phase:
        """The phase that update `step` (0-based over the run) belongs to; a pure function."""
        assert 0 <= step < self.total_steps, f"step {step} lies outside 0..{self.total_steps - 1}"
        return self.phases[bisect_right(self.phases, step, key=lambda phase: phase.stop)]


def _rows_of(phase: PhaseSettings, number: int, full: int, sequence_length: int) -> PhaseRows:
    """Rows per step of a phase; a batch-size warm-up has to lead to the rows of a full step."""
    first, tokens = phase.batch_warmup_rows, phase.batch_warmup_tokens
    if first is None or tokens is None:
        return PhaseRows(full)
    if first >= full or full % first:
        raise SettingsError(
            f"phase {number} of the schedule ({phase.name}) has batch_warmup_rows = {first:,}, which does not "
            f"lead to its {full:,} rows a step in equal additions.\nGive a smaller number that divides {full:,}."
        )
    sizes = range(first, full, first)
    return PhaseRows(full, tuple((rows, math.ceil(tokens / (len(sizes) * rows * sequence_length))) for rows in sizes))


def _stops_of_fractions(phases: Sequence[PhaseSettings], total_steps: int | None) -> list[int]:
    """Ends of the phases: rounded cumulative sums, so that the last ends at the budget."""
    without = [number for number, phase in enumerate(phases, start=1) if phase.fraction is None]
    if without:
        raise SettingsError(
            f"some phases of the schedule have a fraction, but phase {without[0]} ({phases[without[0] - 1].name}) "
            f"has none. Give a fraction to every phase, or to none."
        )
    if total_steps is None:
        raise SettingsError("the schedule has fractions of train.steps, which is not set. Set train.steps.")
    fractions = [phase.fraction or 0.0 for phase in phases]
    whole = math.fsum(fractions)
    if not math.isclose(whole, 1.0, abs_tol=1e-6):
        arithmetic = " + ".join(f"{fraction:g}" for fraction in fractions)
        raise SettingsError(
            f"the fractions of the schedule sum to {arithmetic} = {whole:g}, expected 1. Change them so that they do."
        )
    ends = [math.fsum(fractions[: count + 1]) for count in range(len(fractions))]
    return [*(round(total_steps * end) for end in ends[:-1]), total_steps]


def _stops_of_lengths(
    phases: Sequence[PhaseSettings],
    total_steps: int | None,
    rows: Sequence[PhaseRows],
    sequence_lengths: Sequence[int],
) -> list[int]:
    """Ends of the phases, from steps and tokens."""
    lengths = [
        phase.steps if phase.steps else of_phase.steps_for(math.ceil((phase.tokens or 0) / length))
        for phase, of_phase, length in zip(phases, rows, sequence_lengths, strict=True)
    ]
    stops = list(accumulate(lengths))
    if total_steps is not None and total_steps != stops[-1]:
        arithmetic = " + ".join(f"{length} ({phase.name})" for length, phase in zip(lengths, phases, strict=True))
        raise SettingsError(
            f"train.steps={total_steps}, but the phases of the schedule sum to {arithmetic} = {stops[-1]} steps. "
            f"Leave train.steps out, or make the two equal."
        )
    return stops
