"""The canonical checkpoint: safetensors by Hugging Face name and a manifest; it is complete or not there at all.

A folder `step-NNNNNNNN` holds, for each writing rank, the fp32 weights and both AdamW moments (`weights-…`,
`exp_avg-…`, `exp_avg_sq-…`), the tokenizer in `tokenizer/`, and `manifest.json` with the state of the run and the hash
of every file. It does not depend on the number of ranks or the ZeRO stage, and is read without a process group,
DeepSpeed or pickle. Settings and manifest need no torch and are imported eagerly, the rest on first use.
"""

from typing import TYPE_CHECKING, Any

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER
from toolkit.checkpoint.manifest import (
    FORMAT_VERSION,
    CheckpointManifest,
    FileEntry,
    LayoutEntry,
    TensorEntry,
    VocabularyEntry,
)
from toolkit.checkpoint.retention import CheckpointSettings, retain

if TYPE_CHECKING:
    from toolkit.checkpoint.read import Checkpoint, ParameterState, newest_intact, open_checkpoint, open_unverified
    from toolkit.checkpoint.write import (
        PartEntry,
        abandon,
        begin,
        finish,
        merge_parts,
        write_part,
        write_weights_only,
    )

__all__ = [
    "CHECKPOINTS_FOLDER",
    "FORMAT_VERSION",
    "Checkpoint",
    "CheckpointManifest",
    "CheckpointSettings",
    "FileEntry",
    "LayoutEntry",
    "ParameterState",
    "PartEntry",
    "TensorEntry",
    "VocabularyEntry",
    "abandon",
    "begin",
    "finish",
    "merge_parts",
    "newest_intact",
    "open_checkpoint",
    "open_unverified",
    "retain",
    "write_part",
    "write_weights_only",
]

_WITH_TORCH = {
    "read": ("Checkpoint", "ParameterState", "newest_intact", "open_checkpoint", "open_unverified"),
    "write": ("PartEntry", "abandon", "begin", "finish", "merge_parts", "write_part", "write_weights_only"),
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    from importlib import import_module

    for module, names in _WITH_TORCH.items():
        if name in names:
            return getattr(import_module(f"toolkit.checkpoint.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
