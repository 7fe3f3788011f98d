"""Facts of the report, gathered from the files of the quickstart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.machine import machine_facts
from toolkit.execution.stages import StageRecord
from toolkit.finetuning import FinetuningResult
from toolkit.model.parameters import parameter_counts
from toolkit.objectives.schedule import Phase
from toolkit.run.continuation import Continuation
from toolkit.run.data import RunData
from toolkit.run.folder import RunFolder
from toolkit.run.metrics import read_lines
from toolkit.run.settings import RunSettings
from toolkit.workflows.quickstart.evaluations import (
    MaskedWord,
    bag_of_words_accuracy,
    predict_masked_words,
    unigram_losses,
)

_FILES = {
    "corpus": "tokens as Megatron .bin/.idx shards, with their tokenizer",
    "checkpoints": "weights and optimizer state, for resuming",
    "metrics.jsonl": "one line per logged step",
    "run.toml": "all settings, as a run file",
    "tensorboard": "the same curves for TensorBoard",
    "hf-encoder": "the encoder: EuroBertForMaskedLM",
    "hf-decoder": "the same weights as a decoder: LlamaForCausalLM",
    "finetune": "scores, predictions and models of the fine-tuning runs",
    "mlm-only": "the run without CLM",
}
_PACKAGES = ("torch", "deepspeed", "transformers", "tokenizers", "numpy")
Metrics = tuple[dict[str, Any], ...]
"""The lines of a metrics.jsonl, in order."""


@dataclass(frozen=True)
class Facts:
    """Settings, results and environment of one quickstart."""

    folder: str
    """The quickstart's folder, as commands name it."""
    settings: RunSettings
    phases: tuple[Phase, ...]
    settings_text: str
    """run.toml."""
    documents: int
    tokens: int
    epochs: float
    parameters: int
    ranks: int
    zero_stage: int
    metrics: Metrics
    unigram_loss: dict[str, float]
    """Cross-entropy of a unigram model on the evaluated targets, by objective."""
    masked_words: tuple[MaskedWord, ...]
    result: FinetuningResult
    twins: tuple[FinetuningResult, ...]
    """The same fine-tuning from random weights."""
    bag_of_words: float
    """Test accuracy of the bag-of-words baseline."""
    num_labelled: dict[str, int]
    """Rows of the labelled files: train, validation, test."""
    files: tuple[tuple[str, str, int], ...]
    """Outputs: name below the folder, description, bytes."""
    max_logit_difference: float
    """Between the exported folders, in transformers, and the checkpoint."""
    date: str
    machine: dict[str, str]
    """Hardware and versions, by name."""
    mlm_only: Metrics | None = None
    """Metrics of the run without CLM, if there is one."""
    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    """By title, in order; the report is the last."""
    steps_reason: str = ""
    """Why so many steps were trained."""

    @property
    def majority(self) -> float:
        """Test accuracy of the most frequent label."""
        assert self.result.majority is not None
        return self.result.majority

    @property
    def seconds(self) -> float:
        """Time of all stages."""
        return sum(stage.seconds for stage in self.stages.values())

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all stages."""
        return sum(stage.cpu_seconds for stage in self.stages.values())


def gather(
    folder: Path,
    data: RunData,
    *,
    labelled: dict[str, Path],
    results: Sequence[Path],
    mlm_only: Path | None,
    max_logit_difference: float,
) -> Facts:
    """Read the files, evaluate the baselines and the exported encoder; stages and their times are left out.

    `results` are folders of fine-tuning results, that of the pretrained encoder first.
    """
    last_step = data.run.plan.schedule.total_steps
    checkpoint, _ = RunFolder(folder).newest_checkpoint()
    assert checkpoint is not None
    scores = [FinetuningResult.model_validate_json((path / "result.json").read_bytes()) for path in results]
    rows_read = last_step * data.run.settings.train.global_batch_rows
    return Facts(
        folder=str(folder),
        settings=Continuation(checkpoint.manifest).keep_choices(data.run).settings,
        phases=data.run.plan.schedule.phases,
        settings_text=RunFolder(folder).settings_file.read_text(encoding="utf-8"),
        documents=data.corpus.num_documents,
        tokens=data.corpus.num_tokens,
        epochs=rows_read / data.rows.num_rows,
        parameters=parameter_counts(data.run.settings.model).total,
        ranks=checkpoint.manifest.layout.world_size,
        zero_stage=checkpoint.manifest.layout.zero_stage,
        metrics=read_metrics(folder, last_step=last_step),
        unigram_loss=unigram_losses(data),
        masked_words=predict_masked_words(folder / "hf-encoder"),
        result=scores[0],
        twins=tuple(scores[1:]),
        bag_of_words=bag_of_words_accuracy(labelled),
        num_labelled={split: len(path.read_bytes().splitlines()) - 1 for split, path in labelled.items()},
        files=tuple((name, what, _size(folder / name)) for name, what in _FILES.items() if (folder / name).exists()),
        max_logit_difference=max_logit_difference,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        machine=machine_facts(_PACKAGES),
        mlm_only=None if mlm_only is None else read_metrics(mlm_only, last_step=last_step),
    )


def read_metrics(run_folder: Path, *, last_step: int) -> Metrics:
    """Lines of a finished run's metrics.jsonl, which has to reach the last step."""
    run = RunFolder(run_folder)
    lines = read_lines(run)
    if not lines or (lines[0]["step"], lines[-1]["step"]) != (0, last_step):
        raise UserError(
            f"{run.metrics_file} is incomplete, so the report cannot show the finished run.\n"
            f"Remove {run_folder} and start again."
        )
    return tuple(lines)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
