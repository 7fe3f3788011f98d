"""State of a run, and the facts about a step that hooks get.

Shapes: G rows in a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolkit.data import DIGEST_START, advance_digest
from toolkit.objectives.schedule import Phase
from toolkit.training.spikes import WINDOW


@dataclass(frozen=True)
class RunState:
    """Everything a resumed run needs besides weights and optimizer; the schedule has no state."""

    step: int = 0
    """Updates made so far."""
    tokens: int = 0
    """Non-padding tokens trained on so far."""
    digest: bytes = DIGEST_START
    """Digest over all rows so far."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Last known losses: `train/NAME` and `validation/NAME`, by the name of the objective."""
    recent_losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Losses by objective, of the last steps with targets of it: at most `WINDOW`, all in the last step's phase."""

    def after_step(
        self,
        phase: Phase,
        counts: "StepCounts",
        hashes_G8: npt.NDArray[np.uint8],
        *,
        means: Mapping[str, float],
    ) -> "RunState":
        """The state after one more update on rows with these hashes, in the order of the global batch.

        `means` are the mean losses of the objectives that had a target, by name.
        """
        before = self.losses_in(phase)
        newer = {name: (*before.get(name, ()), mean)[-WINDOW:] for name, mean in means.items()}
        trained = {f"train/{name}": mean for name, mean in means.items()}
        return replace(
            self,
            step=self.step + 1,
            tokens=self.tokens + counts.tokens,
            digest=advance_digest(self.digest, hashes_G8),
            losses={**self.losses, **trained},
            recent_losses={**before, **newer},
        )

    def after_evaluation(self, losses: Mapping[str, float]) -> "RunState":
        """The state with newer validation losses, by objective."""
        newer = {f"validation/{name}": loss for name, loss in losses.items()}
        return replace(self, losses={**self.losses, **newer})

    def losses_in(self, phase: Phase) -> Mapping[str, tuple[float, ...]]:
        """`recent_losses`, if the next step continues the phase; empty if it is the phase's first."""
        return self.recent_losses if self.step > phase.start else {}


class StepCounts(NamedTuple):
    """Counts of a step of P objectives, on one rank or summed over all ranks."""

    targets_P: tuple[int, ...]
    """Target counts by objective."""
    weights_P: tuple[float, ...]
    """Sums of target weights by objective; equal to the counts if targets have no weights."""
    tokens: int = 0
    """Non-padding tokens."""
    attended_pairs: int = 0
    """(Query, key) pairs that attention looks at."""

    @property
    def targets(self) -> int:
        """Targets of all objectives."""
        return sum(self.targets_P)

    def packed(self) -> npt.NDArray[np.int64]:
        """All numbers in one array, of equal length on all ranks."""
        weights_P = np.array(self.weights_P, dtype=np.float64).view(np.int64)
        return np.array([self.tokens, self.attended_pairs, *self.targets_P, *weights_P], dtype=np.int64)

    @classmethod
    def summed(cls, packed_R: npt.NDArray[np.int64]) -> "StepCounts":
        """Sum of the packed counts of all ranks, (R, numbers)."""
        num_objectives = packed_R.shape[1] // 2 - 1
        tokens, pairs, *targets_P = packed_R[:, : 2 + num_objectives].sum(axis=0).tolist()
        weights_RP = np.ascontiguousarray(packed_R[:, 2 + num_objectives :]).view(np.float64)
        return cls(tuple(targets_P), tuple(weights_RP.sum(axis=0).tolist()), tokens, pairs)


@dataclass(frozen=True)
class StepInfo:
    """The state after a step and the phase that the step belongs to; at the start of a run, the phase of the next."""

    state: RunState
    phase: Phase
    attention: str
    """Attention kind of the rows of the step, or "mixed"."""
    is_start: bool = False
    """Whether the run has not made a step yet."""

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self.state.step

    @property
    def is_phase_end(self) -> bool:
        """Return whether this is the last step of the phase."""
        return self.state.step == self.phase.stop


@dataclass(frozen=True)
class StepMetrics:
    """Measurements of one step, over all ranks."""

    loss: float
    """Exact loss before the update: the mean over target tokens, or in a mixture the sum of its objectives' means, each
    times its weight and its fraction of the rows."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    counts: StepCounts
    seconds: float
    """Without evaluation and saving."""
    spike: str = ""
    """Notes on a loss spike; empty if there is none."""
    is_applied: bool = True
    """Whether weights and moments were updated."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Exact means over target tokens, by name, of the step's objectives that had targets."""
    own_seconds_W: Sequence[float] = ()
    """Each rank's own seconds in an earlier step, as in `AgreedStep`."""
