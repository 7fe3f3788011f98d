"""Conversion between the toolkit's checkpoints and Hugging Face folders. Imports torch on first use only."""

from typing import TYPE_CHECKING, Any

from toolkit.conversion.forms import ExportDtype, ExportForm

if TYPE_CHECKING:
    from toolkit.conversion.exporting import to_hf
    from toolkit.conversion.importing import from_hf

__all__ = ["ExportDtype", "ExportForm", "from_hf", "to_hf"]

_ON_FIRST_USE = {"from_hf": "toolkit.conversion.importing", "to_hf": "toolkit.conversion.exporting"}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access."""
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ON_FIRST_USE[name]), name)
