"""A family of fine-tuning tasks, from files to scores, and the registry of families.

A family is a class; ours are declared as entry points of the group `toolkit.tasks`, like those of other packages. A
cell calls its methods in the order below. `read` and `encode` depend only on the data set and the tokenizer, and run
once; the later ones depend on learning rate and seed, and run in every cell.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy.typing as npt
import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel

from toolkit.core.errors import SettingsError
from toolkit.core.plugins import Plugins
from toolkit.core.settings import nearest
from toolkit.core.types import AttentionKind
from toolkit.engine.precision import Precision
from toolkit.finetuning.bad_rows import CheckedData
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.inputs import framed_source
from toolkit.finetuning.named.published_forms import DataFile, PublishedSplit
from toolkit.finetuning.protocol import ExampleT, cut_validation
from toolkit.finetuning.settings import FinetuningSettings, Split
from toolkit.finetuning.trainer import Features, predict, train

_LOWER_IS_BETTER = re.compile(r"^(?!neg_)(.*_)?(loss|error|perplexity|mse|rmse|mae|wer|cer)(_|@|$)")

IGNORED = -100
"""Label value that the loss ignores."""
DataT = TypeVar("DataT")
Prediction = dict[str, Any]
"""A row of predictions.jsonl, plus whatever else `score` needs (see `Task.row`)."""
Outputs = Sequence[npt.NDArray[Any]]
"""Outputs of a network for each input: fp32 logits (classes,), or (tokens, classes) without padding. A family that
overrides `answer` or `answer_splits` may return something else, such as rankings."""


class Task(ABC, Generic[DataT]):
    """A family of tasks.

    Class attributes: `name` as on the command line; `metrics`, the main metric by protocol, and `other_metrics`, which
    the setting `metric` may name instead; `Settings`, which adds the family's own options to those of every
    fine-tuning run.

    **Higher is better** for every metric: the learning rate with the highest mean is chosen. Score an error as 1 - the
    error, or as its negative under a name such as `neg_mse`.
    """

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, str]]
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    Settings: ClassVar[type[FinetuningSettings]] = FinetuningSettings
    attention: ClassVar[AttentionKind | None] = AttentionKind.BIDIRECTIONAL
    """Attention, of decoders too; None leaves decoders as they are."""
    dtype: ClassVar[Precision | None] = None
    """Compute dtype; None: the fastest one for training."""
    pipeline: ClassVar[str] = "feature-extraction"
    """Pipeline tag of fine-tuned models on the hub."""

    def __init__(self, settings: FinetuningSettings) -> None:
        self.settings = settings
        if settings.protocol not in self.metrics:
            raise SettingsError(
                f"the task {self.name} has no protocol {settings.protocol!r}. Choose one of: {', '.join(self.metrics)}."
            )
        if settings.metric is not None and settings.metric not in self.metric_names:
            raise SettingsError(
                f"unknown metric {settings.metric!r} for the task {self.name}."
                f"{nearest(settings.metric, self.metric_names)} Choose one of: {', '.join(self.metric_names)}."
            )

    @property
    def is_paper(self) -> bool:
        """True if inputs and metrics are those of the paper's authors."""
        return self.settings.protocol == "paper"

    def with_validation(self, splits: Mapping[Split, Sequence[ExampleT]]) -> dict[Split, Sequence[ExampleT]]:
        """Splits of a run from those of its files; `paper` cuts a missing validation split from training."""
        return cut_validation(splits) if self.is_paper else dict(splits)

    @property
    def metric(self) -> str:
        """The main metric."""
        return self.metric_names[0] if self.settings.metric is None else self.settings.metric

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Scores that may be the main metric under the settings, the family's default first."""
        protocol = self.settings.protocol
        return (self.metrics[protocol], *self.other_metrics.get(protocol, ()))

    def framed(self, source: EncoderSource) -> EncoderSource:
        """The encoder with the tokenizer that makes the inputs, also saved in fine-tuned folders."""
        return framed_source(source, protocol=self.settings.protocol)

    def check(self, source: EncoderSource) -> None:
        """Refuse a model that lacks weights the task needs, without reading any."""
        load_network(AutoModel, source, device="meta")

    @abstractmethod
    def read(self, files: Mapping[Split, DataFile]) -> DataT:
        """Examples of all splits, checked, and whatever the training split determines for all of them (labels).

        `self.with_validation` adds the protocol's validation split if no file is given.

        Raises:
            UserError: a file is missing, broken or does not fit; names the file and the place.
        """

    @abstractmethod
    def encode(self, data: DataT, source: EncoderSource) -> Mapping[Split, Features]:
        """Inputs of the network for all splits. A long example may become several.

        Raises:
            UserError: an example yields no input.
        """

    @abstractmethod
    def network(self, data: DataT, source: EncoderSource) -> nn.Module:
        """The encoder with a new head, in fp32; new weights come from torch's global generator, already seeded.

        Raises:
            UserError: the encoder cannot be loaded, or lacks weights.
        """

    @abstractmethod
    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch over its targets, from fp32 logits and labels as `collate_labels` stacks them."""

    @abstractmethod
    def decode(
        self, data: DataT, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """One prediction for each example of the answered splits, in order, from the network's outputs."""

    @abstractmethod
    def score(self, data: DataT, predictions: Mapping[Split, list[Prediction]]) -> Mapping[Split, dict[str, float]]:
        """Scores of each split by metric name, including all of `metric_names`. Higher is better."""

    @abstractmethod
    def save(self, network: nn.Module, folder: Path, data: DataT) -> None:
        """Write weights and configuration, so that stock classes load them; the tokenizer is already there."""

    def notes(self, data: DataT) -> dict[str, Any]:
        """Plain data, written to the folder, that `read_open` and `load` need besides weights and configuration."""
        return {}

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> DataT:
        """Examples for the model of a folder to predict, with or without labels, as the test split.

        Raises:
            UserError: as `read`.
        """
        raise SettingsError(f"the task {self.name} cannot predict without training. Use `toolkit finetune` (--test).")

    def load(self, source: EncoderSource, data: DataT) -> nn.Module:
        """Load the network from a folder that `save` wrote; `data` is the result of `read_open`."""
        raise NotImplementedError

    @staticmethod
    def usage(model: Path) -> str:
        """Python code that uses a fine-tuned `model/`."""
        return f"transformers.AutoModel.from_pretrained({str(model)!r})"

    def dataset(self, files: Mapping[Split, DataFile]) -> str:
        """Name of the data in results: the training file's, or its folder's if the file is called train."""
        train = files.get(Split.TRAIN, files[Split.TEST])
        assert isinstance(train, Path)
        return train.resolve().parent.name if train.stem == Split.TRAIN else train.stem

    def files_of(self, split: Split, path: DataFile) -> list[Path]:
        """Files read for a split: the path itself, or all files in a folder."""
        if isinstance(path, PublishedSplit):
            return [*path.named_files.values()]
        return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]

    def row(self, prediction: Prediction) -> Prediction:
        """Row of predictions.jsonl for a prediction, which may have more entries for `score`."""
        return prediction

    def baseline(self, data: DataT) -> float | None:
        """Main metric on the test split of the best answer that reads no text; None if undefined."""
        return None

    def result_fields(self, data: DataT, source: EncoderSource) -> dict[str, Any]:
        """Fields of the result that only some runs have."""
        return {"bad_rows": data.bad.report()} if isinstance(data, CheckedData) and data.bad.found else {}

    def num_targets(self, labels: torch.Tensor) -> int:
        """Number of losses averaged by `loss`: rows, or whatever the family counts. It weights the parts of a batch."""
        return len(labels)

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels of a batch from the `labels` of its inputs; `width` is the longest input's number of tokens."""
        return torch.tensor(labels)

    def logits(self, outputs: Any) -> torch.Tensor:
        """Logits from the network's return value: (B, classes), or (B, tokens, classes)."""
        logits: torch.Tensor = outputs.logits
        return logits

    def fit(self, network: nn.Module, features: Features, source: EncoderSource, *, folder: Path) -> None:
        """Train in place; `folder` is for temporary files of the training.

        Raises:
            NonFiniteError: the training diverged.
        """
        train(network, features, task=self, source=source, folder=folder)

    def answer(self, network: nn.Module, features: Features, source: EncoderSource) -> Outputs:
        """Outputs of the trained network for each input, in their order."""
        return predict(network, features, task=self, source=source)

    def answer_splits(
        self, network: nn.Module, features: Mapping[Split, Features], source: EncoderSource
    ) -> Mapping[Split, Outputs]:
        """`answer` for each split except training; a family may share work between them."""
        return {split: self.answer(network, inputs, source) for split, inputs in features.items()}


class ClassesOfTokens(Task[DataT]):
    """A family with a class, or none (`IGNORED`), for each token."""

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels (B, S); padding is `IGNORED`."""
        return torch.tensor([[*row, *[IGNORED] * (width - len(row))] for row in labels])

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the tokens that have a class."""
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def num_targets(self, labels: torch.Tensor) -> int:
        """Number of tokens that have a class."""
        return int((labels != IGNORED).sum())

    def save(self, network: nn.Module, folder: Path, data: DataT) -> None:
        """Write the folder of the stock class."""
        assert isinstance(network, PreTrainedModel)
        network.save_pretrained(folder)


def _complaints(candidate: object) -> list[str]:
    """Reasons why a candidate is not a family, one phrase each."""
    if not (isinstance(candidate, type) and issubclass(candidate, Task)):
        return ["it is not a subclass of toolkit.finetuning.Task"]
    if missing := [*sorted(candidate.__abstractmethods__), *(["metrics"] if not hasattr(candidate, "metrics") else [])]:
        return [f"it lacks {', '.join(missing)}"]
    named = [
        *candidate.metrics.values(),
        *(metric for others in candidate.other_metrics.values() for metric in others),
    ]
    return [
        f"of the metric {metric!r} a lower value seems to be better, but the highest one is chosen (let it score "
        f"1 - the error, or the negative as 'neg_{metric}')"
        for metric in named
        if _LOWER_IS_BETTER.search(metric)
    ]


TASKS: Plugins[type[Task[Any]]] = Plugins("toolkit.tasks", "task", _complaints)
known_tasks, get_task = TASKS.known, TASKS.get
