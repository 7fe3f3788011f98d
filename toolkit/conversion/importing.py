"""From a Hugging Face folder to a checkpoint."""

from pathlib import Path

from toolkit.core.errors import NotAvailableError

__all__ = ["from_hf"]


def from_hf(model: Path | str, out: Path | str) -> None:
    """Make a checkpoint of a Hugging Face model.

    Raises:
        NotAvailableError: always.
    """
    raise NotAvailableError(f"converting from Hugging Face ({model} to {out})")
