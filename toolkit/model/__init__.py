"""The model: an encoder built from a family's parts, with both attention kinds, packed segments, head at targets only.

Depends on torch, not on ranks. `ModelSettings` and the presets need no torch, so they are imported eagerly and the
encoder on first use.

Letters at the end of array names are shapes, as in `toolkit.core.types`, and D model width, F feed-forward width,
V vocabulary, H query heads, K key-value heads, E width of one head, M bounds of stretches (`SegmentLayout`).
"""

from typing import TYPE_CHECKING, Any

from toolkit.model.config import ModelSettings
from toolkit.model.flops import training_flops
from toolkit.model.parameters import parameter_counts
from toolkit.model.presets import model_settings

if TYPE_CHECKING:
    from toolkit.model.encoder import Encoder

__all__ = ["Encoder", "ModelSettings", "model_settings", "parameter_counts", "training_flops"]


def __getattr__(name: str) -> Any:
    """Import the encoder, which needs torch, on first access."""
    if name != "Encoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from toolkit.model.encoder import Encoder

    return Encoder
