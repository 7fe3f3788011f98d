"""Mixtures: several objectives in every step of a phase.

Each row of a step belongs to one objective. The loss is the sum over objectives of weight x fraction of the step's rows
x token mean: a mean over all targets would weight a CLM row 2.5 times as much as an MLM row at 40 %. A phase of one
objective is a mixture of one entry, with a share of 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field, Tag

from toolkit.core.settings import NUMBER, TABLE, Settings, table_or
from toolkit.core.types import IntArray
from toolkit.objectives.base import Objective
from toolkit.objectives.ramps import ShareRamp


class MixEntry(Settings):
    """An objective of a mixture."""

    objective: str = Field(min_length=1)
    """Name of the objective."""
    share: Annotated[
        Annotated[float, Field(gt=0, le=1), Tag(NUMBER)] | Annotated[ShareRamp, Tag(TABLE)], table_or(NUMBER)
    ]
    """Share of the rows of a step; or a table {from, to}: from the first step of the phase to its last."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Factor of its token mean in the loss, in addition to its share."""

    @property
    def ends(self) -> tuple[float, float]:
        """Shares at the first and the last step."""
        return (self.share, self.share) if isinstance(self.share, float) else (self.share.first, self.share.last)

    @property
    def is_ramp(self) -> bool:
        """True if the share changes during the phase."""
        return len(set(self.ends)) > 1

    def share_at(self, progress: float) -> float:
        """Share at a progress in the phase: 0 at its first step, 1 at its last; exactly as given at both ends."""
        first, last = self.ends
        return first if not self.is_ramp else first * (1 - progress) + last * progress

    def __str__(self) -> str:
        shares = "to ".join(f"{share:.4g} " for share in dict.fromkeys(self.ends))
        return f"{shares}{self.objective}" + (f" (weight {self.weight:g})" if self.weight != 1 else "")


def alone(objective: str) -> tuple[MixEntry, ...]:
    """The mixture of one objective."""
    return (MixEntry(objective=objective, share=1.0),)


def mixture_complaint(mix: Sequence[MixEntry]) -> str | None:
    """Why the entries are not a mixture; None if they are."""
    names = [entry.objective for entry in mix]
    if not names:
        return "an empty mix. Give it {objective, share} entries"
    if twice := {name for name in names if names.count(name) > 1}:
        return f"{min(twice)!r} twice in its mix. Give that objective one entry, with the sum of the shares"
    for when, number in (("first", 0), ("last", 1)):
        total = sum(entry.ends[number] for entry in mix)
        if abs(total - 1) > 1e-6:
            arithmetic = " + ".join(f"{entry.ends[number]:g}" for entry in mix)
            return (
                f"shares that sum to {arithmetic} = {total:g} at its {when} step, expected 1. Change them so that "
                "they do"
            )
    return None


def dealt_rows(mix: Sequence[MixEntry], sizes: Sequence[int]) -> IntArray:
    """Rows of each of P objectives in each step of a phase, whose steps have `sizes` rows: (steps, P).

    Cumulative sums follow those of the exact shares, within one row if there are two objectives.
    """
    firsts, lasts = (_exact([entry.ends[number] for entry in mix]) for number in (0, 1))
    if len(sizes) == 1:
        # The progress of a single step is 1.
        firsts = lasts
    rises = [(last - first) / max(len(sizes) - 1, 1) for first, last in zip(firsts, lasts, strict=True)]
    unit = np.lcm.reduce([part.denominator for part in (*firsts, *rises)], dtype=object)
    starts, steepness = ([int(part * unit) for part in parts] for parts in (firsts, rises))
    owed, dealt = [0] * len(mix), []
    for step, rows in enumerate(sizes):
        due = [rows * (start + step * rise) for start, rise in zip(starts, steepness, strict=True)]
        counts = [part // unit for part in due]
        owed = [before + part % unit for before, part in zip(owed, due, strict=True)]
        for _ in range(rows - sum(counts)):
            number = owed.index(max(owed))
            counts[number] += 1
            owed[number] -= unit
        dealt.append(counts)
    return np.array(dealt, dtype=np.int64)


def _exact(shares: Sequence[float]) -> list[Fraction]:
    """Shares as written (0.1 is one tenth, not its nearest binary fraction), normalized to a sum of exactly 1."""
    written = [Fraction(str(share)) for share in shares]
    return [share / sum(written) for share in written]


def attention_of(objectives: Sequence[Objective]) -> str:
    """Attention kind of the objectives, or "mixed" if they differ."""
    kinds = {objective.attention for objective in objectives}
    return str(kinds.pop()) if len(kinds) == 1 else "mixed"


@dataclass(frozen=True)
class StepMix:
    """Objectives of one step, and their coefficients in its loss."""

    names: tuple[str, ...]
    objectives: tuple[Objective, ...]
    coefficients: tuple[float, ...]
    """Weight x fraction of the step's rows."""
