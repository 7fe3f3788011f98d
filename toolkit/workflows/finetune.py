"""Fine-tuning of MODEL: a run or a checkpoint is converted first, an encoder is used as it is."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from toolkit.checkpoint.folders import holds_checkpoints
from toolkit.core.errors import NotAvailableError, UserError
from toolkit.core.settings import nearest
from toolkit.finetuning import (
    FinetuningResult,
    FinetuningSettings,
    Initialization,
    finetune_sequence_classification,
)


class Task(StrEnum):
    """Tasks for fine-tuning."""

    SEQUENCE_CLASSIFICATION = "sc"
    TOKEN_CLASSIFICATION = "tc"
    QUESTION_ANSWERING = "qa"
    RETRIEVAL = "ir"


def finetune(
    task: Task | str,
    model: str | Path,
    *,
    train: Path,
    test: Path,
    output: Path,
    validation: Path | None = None,
    settings: FinetuningSettings | None = None,
    initialization: Initialization = Initialization.PRETRAINED,
) -> FinetuningResult:
    """Fine-tune and evaluate.

    Args: as `finetune_sequence_classification`; `task` is only `sc` so far, and `model` may be a run or checkpoint too.

    Raises:
        NotAvailableError: the task is not built yet.
        UserError: an unknown task, or invalid input.
    """
    if task not in list(Task):
        raise UserError(f"unknown task {str(task)!r}.{nearest(str(task), Task)} Choose one of: {', '.join(Task)}.")
    if task != Task.SEQUENCE_CLASSIFICATION:
        raise NotAvailableError(f"fine-tuning for the task `{task}`", f"Use the task {Task.SEQUENCE_CLASSIFICATION}.")
    with _as_encoder(model) as encoder:
        return finetune_sequence_classification(
            encoder,
            train=train,
            test=test,
            output=output,
            validation=validation,
            settings=settings,
            initialization=initialization,
            model_name=str(model),
        )


@contextmanager
def _as_encoder(model: str | Path) -> Iterator[str | Path]:
    """MODEL as a Hugging Face folder or hub id, inside the block."""
    if not holds_checkpoints(Path(model)) or (Path(model) / "config.json").exists():
        yield model
        return
    from toolkit.conversion import ExportDtype, ExportForm, to_hf

    with tempfile.TemporaryDirectory(prefix="toolkit-finetune-") as scratch:
        encoder = Path(scratch) / "encoder"
        to_hf(model, encoder, form=ExportForm.BIDIRECTIONAL, dtype=ExportDtype.FP32)
        yield encoder
