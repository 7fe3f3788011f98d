"""Everything the report shows, gathered before a word of it is written."""

from dataclasses import dataclass
from typing import Any

from toolkit.finetuning import FinetuningResult
from toolkit.objectives.schedule import Phase
from toolkit.run.settings import RunSettings
from toolkit.workflows.stages import TimedStage

Metrics = tuple[dict[str, Any], ...]
"""The lines of a metrics.jsonl, in order."""


@dataclass(frozen=True)
class HiddenWord:
    """A sentence with one word hidden, and what the encoder puts there."""

    before: str
    hidden: str
    after: str
    guesses: tuple[tuple[str, float], ...]
    """Words and their probabilities, the likeliest first."""


@dataclass(frozen=True)
class Facts:
    """Settings, measurements and surroundings of one quickstart."""

    folder: str
    """The job's folder, as commands name it."""
    settings: RunSettings
    phases: tuple[Phase, ...]
    settings_text: str
    """run.toml."""
    documents: int
    tokens: int
    epochs: float
    parameters: int
    ranks: int
    metrics: Metrics
    frequency_loss: dict[str, float]
    """Loss of predicting every token by its frequency in the training text, by objective, on the evaluated targets."""
    hidden_words: tuple[HiddenWord, ...]
    result: FinetuningResult
    twins: tuple[FinetuningResult, ...]
    """The same fine-tuning from random weights."""
    bag_of_words: float
    """Test accuracy of counted words without any network."""
    num_labelled: dict[str, int]
    """Rows of the labelled files: train, validation, test."""
    files: tuple[tuple[str, str, int], ...]
    """What was made: name below the folder, what it is, bytes."""
    max_logit_difference: float
    """Between the exported folders, in transformers, and the checkpoint."""
    date: str
    machine: dict[str, str]
    """What it ran on and with, by name."""
    mlm_only: Metrics | None = None
    """The run without CLM, where it was asked for."""
    stages: tuple[TimedStage, ...] = ()
    """What was done, in order, the report last."""

    @property
    def seconds(self) -> float:
        """All stages together."""
        return sum(stage.record.seconds for stage in self.stages)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all stages together."""
        return sum(stage.record.cpu_seconds for stage in self.stages)
