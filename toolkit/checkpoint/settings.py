"""How often a run saves, and what it keeps."""

from pydantic import Field

from toolkit.core.settings import Settings


class CheckpointSettings(Settings):
    """When checkpoints are written and which of them stay. The last step is always saved."""

    every: int | None = Field(default=None, ge=1)
    """Steps between two checkpoints; unset, only the last step is saved."""

    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay."""

    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints at multiples of this step stay for ever, as a trunk to branch from; unset, none do."""
