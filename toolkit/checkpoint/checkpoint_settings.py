"""How often a run saves, and what it keeps."""

from pydantic import Field

from toolkit.core.settings import Settings


class CheckpointSettings(Settings):
    """When checkpoints are saved and which are kept. The last step is always saved."""

    every: int | None = Field(default=None, ge=1)
    """Save at multiples of this step; unset, only at those of `keep_every`."""

    keep: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""

    keep_every: int | None = Field(default=None, ge=1)
    """Save at multiples of this step too and never delete those, as a trunk to branch from."""

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is saved at this step, be it the last or not."""
        return any(interval is not None and step % interval == 0 for interval in (self.every, self.keep_every))
