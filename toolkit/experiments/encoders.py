"""The encoder of a MODEL to fine-tune; that of a run or checkpoint is exported first."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import holds_checkpoints
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.types import AttentionKind
from toolkit.finetuning import EncoderSource, Initialization, Task, open_source


def needs_export(model: str | Path) -> bool:
    """True if MODEL is a run or a checkpoint of this toolkit."""
    return holds_checkpoints(Path(model)) and not (Path(model) / "config.json").exists()


def check_model(
    model: str | Path, tasks: Iterable[Task[Any]], *, initialization: Initialization = Initialization.PRETRAINED
) -> None:
    """Validate a model without loading it, before data are fetched for it or many cells run."""
    if needs_export(model):
        open_checkpoint(model)
        return
    sources: dict[AttentionKind | None, EncoderSource] = {}
    for task in tasks:
        if task.attention not in sources:
            sources[task.attention] = open_source(str(model), initialization=initialization, attention=task.attention)
        if initialization is Initialization.PRETRAINED:
            task.check(sources[task.attention])


def export_encoder(model: str | Path, folder: Path) -> Path:
    """Export the encoder of a run or checkpoint as a Hugging Face folder, and return the checkpoint's folder."""
    from toolkit.conversion import ExportDtype, ExportForm, to_hf

    return to_hf(model, folder, form=ExportForm.BIDIRECTIONAL, dtype=ExportDtype.FP32).checkpoint
