"""A family of fine-tuning tasks, from files to scores, and the registry of families.

A family is a class; ours are declared as entry points of the group `toolkit.tasks`, like those of other packages. A
cell calls its methods in the order in which they stand here. `read` and `encode` depend on the data set and the
tokenizer alone and happen once; what follows depends on learning rate and seed and happens in every cell.
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
"""In place of a label: the loss leaves it out."""
DataT = TypeVar("DataT")
Prediction = dict[str, Any]
"""A row of predictions.jsonl, and what else `score` needs (see `Task.row`)."""
Outputs = Sequence[npt.NDArray[Any]]
"""What a network answers to each input: fp32 logits (classes,), or (tokens, classes) without padding. A family whose
`answer` is its own may return something else, such as rankings."""


class Task(ABC, Generic[DataT]):
    """A family of tasks.

    Class attributes: `name` as on the command line; `metrics`, the main metric by protocol, and `other_metrics`, those
    that `metric` of the settings may name in its place; `Settings`, which adds the family's own options to those of
    every fine-tuning run.

    **Higher is better**, in every metric: a rate is chosen by the highest mean. Of an error take 1 - it, or its
    negative under a name such as `neg_mse`.
    """

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, str]]
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    Settings: ClassVar[type[FinetuningSettings]] = FinetuningSettings
    attention: ClassVar[AttentionKind | None] = AttentionKind.BIDIRECTIONAL
    """Given to decoders too; None leaves them as they are."""
    dtype: ClassVar[Precision | None] = None
    """Compute dtype; None: what training is fastest in."""
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
        """True where inputs and metrics are those of the paper's authors."""
        return self.settings.protocol == "paper"

    def with_validation(self, splits: Mapping[Split, Sequence[ExampleT]]) -> dict[Split, Sequence[ExampleT]]:
        """The splits of a run, from those of its files; without one for validation, `paper` cuts it off training."""
        return cut_validation(splits) if self.is_paper else dict(splits)

    @property
    def metric(self) -> str:
        """The main metric."""
        return self.metric_names[0] if self.settings.metric is None else self.settings.metric

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Scores that may be the main metric under the settings, the family's own choice first."""
        protocol = self.settings.protocol
        return (self.metrics[protocol], *self.other_metrics.get(protocol, ()))

    def framed(self, source: EncoderSource) -> EncoderSource:
        """The encoder with the tokenizer that makes the inputs; fine-tuned folders have it too."""
        return framed_source(source, protocol=self.settings.protocol)

    def check(self, source: EncoderSource) -> None:
        """Refuse a model that lacks weights which the task needs; none are read."""
        load_network(AutoModel, source, device="meta")

    @abstractmethod
    def read(self, files: Mapping[Split, DataFile]) -> DataT:
        """Examples of all splits, checked, and what the training split decides for all (labels).

        `self.with_validation` gives them the validation split that the protocol wants where no file is given.

        Raises:
            UserError: a file is missing, broken or does not fit; names the file and the place.
        """

    @abstractmethod
    def encode(self, data: DataT, source: EncoderSource) -> Mapping[Split, Features]:
        """Inputs of the network for all splits. A long example may become several.

        Raises:
            UserError: an example leaves nothing to read.
        """

    @abstractmethod
    def network(self, data: DataT, source: EncoderSource) -> nn.Module:
        """The encoder with a new head, in fp32; what is drawn comes from torch's global generator, seeded before.

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
        """Scores of each split by metric name, all of `metric_names` among them. Higher is better."""

    @abstractmethod
    def save(self, network: nn.Module, folder: Path, data: DataT) -> None:
        """Write weights and configuration, so that stock classes load them; the tokenizer is already there."""

    def notes(self, data: DataT) -> dict[str, Any]:
        """Plain data, written to the folder, that `read_open` and `load` need besides weights and configuration."""
        return {}

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> DataT:
        """Examples that the model of a folder answers, with labels or without, as the test split.

        Raises:
            UserError: as `read`.
        """
        raise SettingsError(f"the task {self.name} cannot predict without training. Use `toolkit finetune` (--test).")

    def load(self, source: EncoderSource, data: DataT) -> nn.Module:
        """The network of a folder that `save` wrote; in `data` is what `read_open` gave."""
        raise NotImplementedError

    @staticmethod
    def usage(model: Path) -> str:
        """Python that uses a fine-tuned `model/`."""
        return f"transformers.AutoModel.from_pretrained({str(model)!r})"

    def dataset(self, files: Mapping[Split, DataFile]) -> str:
        """Name of the data in results: the training file's, or its folder's where the file is called train."""
        train = files.get(Split.TRAIN, files[Split.TEST])
        assert isinstance(train, Path)
        return train.resolve().parent.name if train.stem == Split.TRAIN else train.stem

    def files_of(self, split: Split, path: DataFile) -> list[Path]:
        """The files that are read for a split: the path itself, or all files in a folder."""
        if isinstance(path, PublishedSplit):
            return [*path.named_files.values()]
        return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]

    def row(self, prediction: Prediction) -> Prediction:
        """Row of predictions.jsonl for a prediction, which may hold more for `score`."""
        return prediction

    def baseline(self, data: DataT) -> float | None:
        """The main metric on the test split of the best answer that reads no text; None where there is none."""
        return None

    def result_fields(self, data: DataT, source: EncoderSource) -> dict[str, Any]:
        """Fields of the result that not every run has."""
        return {"bad_rows": data.bad.report()} if isinstance(data, CheckedData) and data.bad.found else {}

    def num_targets(self, labels: torch.Tensor) -> int:
        """Number of losses in the mean of `loss`: rows, or what else a family counts. It weighs parts of a batch."""
        return len(labels)

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels of a batch, from `labels` of its inputs; `width` is the longest input's number of tokens."""
        return torch.tensor(labels)

    def logits(self, outputs: Any) -> torch.Tensor:
        """The logits in what the network returns: (B, classes), or (B, tokens, classes)."""
        logits: torch.Tensor = outputs.logits
        return logits

    def fit(self, network: nn.Module, features: Features, source: EncoderSource, *, folder: Path) -> None:
        """Train in place; `folder` is for files of the training, and removed with the cell's end.

        Raises:
            NonFiniteError: the training diverged.
        """
        train(network, features, task=self, source=source, folder=folder)

    def answer(self, network: nn.Module, features: Features, source: EncoderSource) -> Outputs:
        """Answers of the trained network to each input, in their order."""
        return predict(network, features, task=self, source=source)

    def answer_splits(
        self, network: nn.Module, features: Mapping[Split, Features], source: EncoderSource
    ) -> Mapping[Split, Outputs]:
        """`answer` for each split but the training split; a family may share work between them."""
        return {split: self.answer(network, inputs, source) for split, inputs in features.items()}


class ClassesOfTokens(Task[DataT]):
    """A family with a class for each token, or none (`IGNORED`)."""

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels (B, S); padding has none."""
        return torch.tensor([[*row, *[IGNORED] * (width - len(row))] for row in labels])

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the tokens that have a class."""
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def num_targets(self, labels: torch.Tensor) -> int:
        """Tokens that have a class."""
        return int((labels != IGNORED).sum())

    def save(self, network: nn.Module, folder: Path, data: DataT) -> None:
        """The folder of the stock class."""
        assert isinstance(network, PreTrainedModel)
        network.save_pretrained(folder)


def _complaints(candidate: object) -> list[str]:
    """Reasons why a candidate is no family, a phrase each."""
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
