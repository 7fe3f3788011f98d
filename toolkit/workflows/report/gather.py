"""From what the job left in its folder to the facts of the report."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER
from toolkit.checkpoint.read import newest_intact
from toolkit.core.errors import UserError
from toolkit.finetuning import FinetuningResult
from toolkit.model.presets import parameter_counts
from toolkit.run.resolve import RunData
from toolkit.workflows.report.bag_of_words import bag_of_words_accuracy
from toolkit.workflows.report.facts import Facts, Metrics
from toolkit.workflows.report.frequencies import frequency_losses
from toolkit.workflows.report.hidden_words import guess_hidden_words
from toolkit.workflows.report.surroundings import surroundings

_FILES = {
    "corpus": "tokens as Megatron .bin/.idx shards, with their tokenizer",
    "checkpoints": "weights and optimizer state, to go on from",
    "metrics.jsonl": "one line a logged step",
    "run.toml": "all settings; a run file",
    "tensorboard": "the same curves for TensorBoard",
    "hf-encoder": "the encoder: EuroBertForMaskedLM",
    "hf-decoder": "the same weights as a decoder: LlamaForCausalLM",
    "finetune": "scores, predictions and models of the fine-tuning runs",
    "mlm-only": "the run without CLM",
}


def gather(
    folder: Path,
    data: RunData,
    *,
    labelled: dict[str, Path],
    results: Sequence[Path],
    mlm_only: Path | None,
    max_logit_difference: float,
) -> Facts:
    """Read everything back, ask the encoder, look at the machine; the stages and their times are left out.

    Args:
        folder: of the job.
        data: of the run.
        labelled: the labelled files by split.
        results: folders of fine-tuning results, that of the pretrained encoder first.
        mlm_only: run folder of the run without CLM, if there is one.
        max_logit_difference: between the exported folders and the checkpoint.

    Raises:
        UserError: a file that the report needs is missing.
    """
    last_step = data.schedule.total_steps
    checkpoint, _ = newest_intact(folder / CHECKPOINTS_FOLDER)
    assert checkpoint is not None
    scores = [FinetuningResult.model_validate_json((path / "result.json").read_bytes()) for path in results]
    rows_read = last_step * data.settings.train.global_batch_rows
    return Facts(
        folder=str(folder),
        settings=data.settings,
        phases=data.schedule.phases,
        settings_text=(folder / "run.toml").read_text(encoding="utf-8"),
        documents=data.corpus.num_documents,
        tokens=data.corpus.num_tokens,
        epochs=rows_read / data.rows.num_rows,
        parameters=parameter_counts(data.settings.model).total,
        ranks=checkpoint.manifest.layout.world_size,
        metrics=read_metrics(folder, last_step=last_step),
        frequency_loss=frequency_losses(data),
        hidden_words=guess_hidden_words(folder / "hf-encoder"),
        result=scores[0],
        twins=tuple(scores[1:]),
        bag_of_words=bag_of_words_accuracy(labelled),
        num_labelled={split: _num_rows(path) for split, path in labelled.items()},
        files=tuple((name, what, _size(folder / name)) for name, what in _FILES.items() if (folder / name).exists()),
        max_logit_difference=max_logit_difference,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        machine=surroundings(),
        mlm_only=None if mlm_only is None else read_metrics(mlm_only, last_step=last_step),
    )


def read_metrics(run_folder: Path, *, last_step: int) -> Metrics:
    """The lines of a finished run's metrics.jsonl.

    Raises:
        UserError: the file is missing, damaged, or ends before the last step.
    """
    path = run_folder / "metrics.jsonl"
    try:
        lines = tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        is_whole = lines[0]["step"] == 0 and lines[-1]["step"] == last_step
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"{path} is not whole, so the report cannot show the run, which is finished.\n"
            f"Remove {run_folder} and start again."
        )
    return lines


def _num_rows(path: Path) -> int:
    """Rows of a table with a heading."""
    with path.open("rb") as file:
        return sum(1 for _ in file) - 1


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
