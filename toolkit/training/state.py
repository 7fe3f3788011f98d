"""Where a run stands, and what one step says of itself."""

from dataclasses import dataclass, field

from toolkit.core.types import AttentionKind
from toolkit.data import DIGEST_START


@dataclass(frozen=True)
class RunState:
    """All that a resumed run needs besides the engine's state: small, and the schedule has none."""

    step: int = 0
    """Updates made so far."""
    tokens: int = 0
    """Non-padding tokens trained on so far."""
    digest: bytes = DIGEST_START
    """Digest over all rows so far."""


@dataclass(frozen=True)
class Ancestry:
    """What was behind the weights of a run before its own first step."""

    origin: dict[str, str] = field(default_factory=dict)
    """Where they come from; empty where they were drawn."""
    optimizer_step: int = 0
    """Updates that the optimizer's moments, where they were kept, had seen."""


@dataclass
class StepRecord:
    """One step as hooks see it, counted from 1; step 0 is the moment before the first, without a loss."""

    step: int
    phase: int
    objective: str
    attention: AttentionKind
    is_phase_end: bool
    tokens: int
    digest: bytes
    loss: float | None = None
    targets: int = 0
    learning_rate: float = 0.0
    grad_norm: float = 0.0
    step_tokens: int = 0
    step_pairs: int = 0
    """(Query, key) pairs that attention looked at."""
    seconds: float = 0.0
    eval_loss: dict[str, float] = field(default_factory=dict)
    """Validation losses, filled in by the evaluation hook, which runs first."""
