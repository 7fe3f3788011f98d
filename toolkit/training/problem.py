"""Rows of token ids turned into the supervised problem of a micro-batch, by one or more objectives.

Shapes: B rows in a micro-batch, S positions in a row, N targets, P objectives and G rows of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from toolkit.core.draws import Draws, hash_numbers, keyed_uint64
from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind, FloatArray, IntArray, Targets
from toolkit.data import TokenRows
from toolkit.data.order import permute
from toolkit.objectives.base import Objective
from toolkit.objectives.mixture import StepMix


def deal(rows_P: IntArray, *, seed: int, step: int) -> IntArray:
    """Objective number of each row of a step, from the row counts of objectives: (P,) -> (G,).

    The order is random per step: dealt in turn, all rows of one corpus of a blend could go to one objective.
    """
    num_rows = int(rows_P.sum())
    if len(rows_P) == 1:
        return np.zeros(num_rows, dtype=np.int64)
    key = hash_numbers(np.uint64(keyed_uint64(seed, "mix")), np.array([step]))
    places_G = permute(np.arange(num_rows), num_rows, keys_B=np.repeat(key, num_rows))
    return np.searchsorted(np.cumsum(rows_P), places_G, side="right")


@dataclass(frozen=True)
class Problem:
    """Inputs and targets of a micro-batch, with causal rows first."""

    targets: Targets
    segments_BS: IntArray
    num_causal: int
    """Number of causal rows."""
    objective_N: IntArray
    """Number of the objective of each target."""

    @classmethod
    def pose(cls, mix: StepMix, rows: TokenRows, objective_B: IntArray, samples_B: IntArray, *, seed: int) -> Self:
        """Problem that objectives make from their rows; `samples_B` are the rows' sample indices."""
        kinds, parts = [objective.attention for objective in mix.objectives], []
        for number in sorted(range(len(kinds)), key=lambda number: kinds[number] is not AttentionKind.CAUSAL):
            own_B = np.flatnonzero(objective_B == number)
            draws = Draws(seed, samples_B[own_B], num_columns=rows.tokens_BS.shape[1])
            own = rows if own_B.size == len(objective_B) else TokenRows(rows.tokens_BS[own_B], rows.segments_BS[own_B])
            if own_B.size:
                parts.append(cls.of_one(mix.objectives[number], own, draws, number=number))
        return parts[0] if len(parts) == 1 else cls._joined(parts)

    @classmethod
    def of_one(cls, objective: Objective, rows: TokenRows, draws: Draws, *, number: int = 0) -> Self:
        """Problem that one objective makes from its rows."""
        targets = build(objective, rows, draws)
        num_causal = len(rows.tokens_BS) if objective.attention is AttentionKind.CAUSAL else 0
        return cls(targets, rows.segments_BS, num_causal, np.full(targets.labels_N.size, number))

    @classmethod
    def _joined(cls, parts: Sequence[Self]) -> Self:
        starts = np.cumsum([0, *(part.segments_BS.size for part in parts)]).tolist()
        positions = [part.targets.positions_N + start for part, start in zip(parts, starts, strict=False)]
        is_weighed = any(part.targets.weights_N is not None for part in parts)
        targets = Targets(
            input_ids_BS=np.concatenate([part.targets.input_ids_BS for part in parts]),
            positions_N=np.concatenate(positions),
            labels_N=np.concatenate([part.targets.labels_N for part in parts]),
            weights_N=np.concatenate([part.weights_N for part in parts]) if is_weighed else None,
        )
        return cls(
            targets,
            np.concatenate([part.segments_BS for part in parts]),
            sum(part.num_causal for part in parts),
            np.concatenate([part.objective_N for part in parts]),
        )

    @property
    def weights_N(self) -> FloatArray:
        """Weight of each target in its objective's mean."""
        given_N = self.targets.weights_N
        return np.ones(self.targets.labels_N.size, np.float32) if given_N is None else given_N

    def counts(self, num_objectives: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Number of targets and sum of their weights, per objective of the step."""
        targets_P = np.bincount(self.objective_N, minlength=num_objectives)
        weights_P = np.bincount(self.objective_N, weights=self.weights_N, minlength=num_objectives)
        return tuple(targets_P.tolist()), tuple(weights_P.tolist())


def build(objective: Objective, rows: TokenRows, draws: Draws) -> Targets:
    """Inputs and targets that the objective makes from rows, which must not change: they are hashed later."""
    rows.tokens_BS.flags.writeable = rows.segments_BS.flags.writeable = False
    named = f"the objective {objective.name} ({type(objective).__module__}.{type(objective).__qualname__})"
    try:
        targets = objective.build(rows.tokens_BS, rows.segments_BS, draws)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise SettingsError(
            f"{named} writes into its input: {error}.\nbuild() may change copies only: tokens_BS.copy(), "
            "segments_BS.copy()."
        ) from error
    if not (np.diff(targets.positions_N.astype(np.int64)) > 0).all():
        raise SettingsError(
            f"{named} gives positions_N that do not ascend, or one of them twice.\nbuild() has to sort them, and their "
            "labels with them, as np.flatnonzero gives them."
        )
    weights_N = targets.weights_N
    if weights_N is not None and not (
        weights_N.shape == targets.labels_N.shape and (np.isfinite(weights_N) & (weights_N >= 0)).all()
    ):
        raise SettingsError(
            f"{named} gives weights_N that are not finite, negative or not as many as its labels_N.\nbuild() has to "
            "give each target a weight of 0 or more, or none at all."
        )
    return targets
