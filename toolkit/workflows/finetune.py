"""Fine-tuning of MODEL: a run or a checkpoint is converted first, an encoder is used as it is."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.checkpoint.folders import holds_checkpoints
from toolkit.finetuning import (
    FinetuningResult,
    FinetuningSettings,
    Initialization,
    Split,
    get_task,
    open_source,
    prepare,
    run_cell,
)


def finetune(
    task: str,
    model: str | Path,
    *,
    train: Path,
    test: Path,
    output: Path,
    validation: Path | None = None,
    settings: FinetuningSettings | None = None,
    initialization: Initialization = Initialization.PRETRAINED,
) -> FinetuningResult:
    """Fine-tune an encoder on labelled data and evaluate it.

    Args:
        task: name of a family: `sc`, or one that another package offers.
        model: folder or hub id of a Hugging Face encoder, or a run or checkpoint of this toolkit.
        train: training file, as the family reads it.
        test: evaluated at the end.
        output: folder that gets `result.json`, `predictions.jsonl` (one row per test example, in order) and `model/`.
        validation: evaluated at the end as well, if given.
        settings: of the family's own class; None for the defaults.
        initialization: `RANDOM` trains a twin of the same configuration whose weights are drawn from the seed.

    Raises:
        UserError: a file, a column, a label or the model does not fit; nothing has been trained then.
        NonFiniteError: the training diverged.
    """
    family = get_task(task)
    chosen = family(family.Settings() if settings is None else settings)
    files = {Split.TRAIN: train, Split.TEST: test} | ({} if validation is None else {Split.VALIDATION: validation})
    data = chosen.read(files)
    with _as_encoder(model) as encoder:
        source = open_source(str(encoder), initialization=initialization, max_length=chosen.settings.max_length)
        return run_cell(prepare(chosen, files, data, source), output, model_name=str(model))


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
