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
    """Fine-tune and evaluate; see `toolkit.finetuning` for input files and outputs.

    Args:
        task: only `sc` so far.
        model: a Hugging Face folder or hub id, or a run or checkpoint folder of this toolkit.
        train: labelled training data.
        test: labelled data to evaluate on.
        output: folder of the results.
        validation: more data to evaluate on.
        settings: None for the defaults.
        initialization: `RANDOM` trains a randomly initialised twin.

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
    if not _is_checkpoint(model):
        yield model
        return
    from toolkit.conversion import ExportDtype, ExportForm, to_hf

    with tempfile.TemporaryDirectory(prefix="toolkit-finetune-") as scratch:
        encoder = Path(scratch) / "encoder"
        to_hf(model, encoder, form=ExportForm.BIDIRECTIONAL, dtype=ExportDtype.FP32)
        yield encoder


def _is_checkpoint(model: str | Path) -> bool:
    """Whether it is a run, a folder of checkpoints or a checkpoint of this toolkit."""
    return holds_checkpoints(Path(model)) and not (Path(model) / "config.json").exists()
