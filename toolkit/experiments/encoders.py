"""The encoder of a MODEL that is to be fine-tuned: one of a run or a checkpoint is exported first."""

from pathlib import Path

from safetensors import safe_open

from toolkit.checkpoint.folders import holds_checkpoints
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.types import AttentionKind
from toolkit.finetuning import open_source
from toolkit.finetuning.source import model_loading


def needs_export(model: str | Path) -> bool:
    """True if MODEL is a run or a checkpoint of this toolkit."""
    return holds_checkpoints(Path(model)) and not (Path(model) / "config.json").exists()


def check_model(model: str | Path, *, attention: AttentionKind | None = AttentionKind.BIDIRECTIONAL) -> None:
    """Find what is wrong with a model without loading it, before data are fetched for it or many cells run."""
    if needs_export(model):
        open_checkpoint(model)
        return
    open_source(str(model), attention=attention)
    for file in sorted(Path(model).glob("*.safetensors")):
        with model_loading(str(model)), safe_open(file, "pt"):
            pass


def export_encoder(model: str | Path, folder: Path) -> Path:
    """Write a run's or a checkpoint's encoder as a Hugging Face folder, and return the folder of the checkpoint."""
    from toolkit.conversion import ExportDtype, ExportForm, to_hf

    return to_hf(model, folder, form=ExportForm.BIDIRECTIONAL, dtype=ExportDtype.FP32).checkpoint
