"""The model: an encoder built from a family's parts, with both attention kinds, packed segments, head at targets only.

Depends on torch, not on ranks. `ModelSettings` and the presets need no torch, so they are imported eagerly and the
rest on first use.

Letters at the end of array names are shapes, as in `toolkit.core.types`, and D model width, F feed-forward width,
V vocabulary, H query heads, K key-value heads, E width of one head, M bounds of stretches (`SegmentLayout`).
"""

from typing import TYPE_CHECKING, Any

from toolkit.model.config import ModelSettings
from toolkit.model.flops import attended_pairs, training_flops
from toolkit.model.parameters import parameter_counts
from toolkit.model.presets import MODEL_PRESETS, model_settings

if TYPE_CHECKING:
    from toolkit.model.activation_checkpointing import checkpoint_blocks_
    from toolkit.model.compiled_blocks import compile_blocks_
    from toolkit.model.encoder import Encoder
    from toolkit.model.initialization import initialize_
    from toolkit.model.segments import SegmentLayout

__all__ = [
    "MODEL_PRESETS",
    "Encoder",
    "ModelSettings",
    "SegmentLayout",
    "attended_pairs",
    "checkpoint_blocks_",
    "compile_blocks_",
    "initialize_",
    "model_settings",
    "parameter_counts",
    "training_flops",
]

_WITH_TORCH = {
    "Encoder": "toolkit.model.encoder",
    "SegmentLayout": "toolkit.model.segments",
    "checkpoint_blocks_": "toolkit.model.activation_checkpointing",
    "compile_blocks_": "toolkit.model.compiled_blocks",
    "initialize_": "toolkit.model.initialization",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access."""
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WITH_TORCH[name]), name)
