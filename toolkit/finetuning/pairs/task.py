"""Minimal pairs (`pairs`): two sentences, one of them acceptable, as in BLiMP's files; nothing is trained."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from toolkit.core.errors import UserError
from toolkit.core.types import AttentionKind
from toolkit.engine.precision import Precision
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.pairs.likelihood import (
    choose_form,
    load_language_model,
    load_with_head,
    log_likelihoods,
    token_in_front,
)
from toolkit.finetuning.settings import FinetuningSettings, MinimalPairsSettings, Split
from toolkit.finetuning.task import Outputs, Prediction, Task
from toolkit.finetuning.trainer import Features, right_padding
from toolkit.tables import read_table

_UID, _GOOD, _BAD = "UID", "sentence_good", "sentence_bad"
_IN_FOLDERS = (".jsonl", ".parquet")


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence, their paradigm, and their place in the file."""

    uid: str
    sentences: tuple[str, str]
    place: str


class MinimalPairs(Task[list[MinimalPair]]):
    """Share of the pairs whose acceptable sentence has the higher (pseudo-)log-likelihood."""

    name: ClassVar[str] = "pairs"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "accuracy"}
    Settings: ClassVar[type[FinetuningSettings]] = MinimalPairsSettings
    attention: ClassVar[AttentionKind | None] = None
    dtype: ClassVar[Precision | None] = "fp32"
    settings: MinimalPairsSettings

    def read(self, files: Mapping[Split, DataFile]) -> list[MinimalPair]:
        """Pairs of a file, or of all files of a folder; other columns are not read."""
        places: dict[tuple[str, ...], str] = {}
        pairs = []
        for file in self.files_of(Split.TEST, files[Split.TEST]):
            for number, row in enumerate(read_table(file).rows, start=1):
                place = f"{file}, row {number}"
                uid = file.stem if row.get(_UID) is None else _text(row, _UID, place)
                pair = MinimalPair(uid, (_text(row, _GOOD, place), _text(row, _BAD, place)), place)
                if (first := places.setdefault((uid, *pair.sentences), place)) != place:
                    raise UserError(f"{place}: the same pair as in {first}. Remove one of the two.")
                pairs.append(pair)
        return pairs

    def files_of(self, split: Split, path: DataFile) -> list[Path]:
        """The file itself, or all tables in a folder that have one of BLiMP's formats, and no hidden ones."""
        if not isinstance(path, Path) or not path.is_dir():
            return super().files_of(split, path)
        files = (file for file in path.rglob("*") if file.suffix in _IN_FOLDERS and file.is_file())
        found = sorted(file for file in files if not any(part[0] == "." for part in file.relative_to(path).parts))
        if not found:
            raise UserError(f"{path}: no {' or '.join(_IN_FOLDERS)} file in this folder. Give the folder of the pairs.")
        return found

    def framed(self, source: EncoderSource) -> EncoderSource:
        """The encoder unchanged: a sentence is scored within its tokenizer's own special tokens (`token_in_front`)."""
        return source

    def encode(self, data: list[MinimalPair], source: EncoderSource) -> Mapping[Split, Features]:
        """Ids with special tokens, the good sentence of each pair before the bad one, and scored positions.

        Special tokens are not scored, nor is a first token if it would be predicted at the position before it.
        """
        form, offset = choose_form(source, self.settings.form)
        front = [] if (token := token_in_front(source, form)) is None else [token]
        sentences = [sentence for pair in data for sentence in pair.sentences]
        encoded = source.tokenizer(sentences, return_special_tokens_mask=True, verbose=False)
        inputs = []
        for number, (own, marks) in enumerate(zip(encoded.input_ids, encoded.special_tokens_mask, strict=True)):
            ids, frame = [*front, *own], [*(1 for _ in front), *marks]
            targets = [position for position in range(offset, len(ids)) if not frame[position]]
            if not targets or len(ids) > source.max_length:
                problem = (
                    f"has {len(ids):,} tokens, and {source.model} takes {source.max_length:,}"
                    if targets
                    else ("has no token to score")
                )
                place = f"{data[number // 2].place}: {(_GOOD, _BAD)[number % 2]!r}"
                raise UserError(f"{place} {problem}. Correct or remove the row.")
            inputs.append({"input_ids": ids, "targets": targets})
        return {Split.TRAIN: [], Split.TEST: inputs}

    def check(self, source: EncoderSource) -> None:
        """Refuse a model without a language-model head, such as a sentence encoder."""
        load_with_head(source, choose_form(source, self.settings.form)[0], device="meta")

    def network(self, data: list[MinimalPair], source: EncoderSource) -> nn.Module:
        """The language model with its own head."""
        return load_language_model(source, choose_form(source, self.settings.form)[0])

    def fit(self, network: nn.Module, features: Features, source: EncoderSource, *, folder: Path) -> None:
        """Leave the model as it is."""

    def answer(self, network: nn.Module, features: Features, source: EncoderSource) -> Outputs:
        """(Pseudo-)log-likelihood of each sentence."""
        form, offset = choose_form(source, self.settings.form)
        mask_id = source.tokenizer.mask_token_id if form == "masked" else None
        pad_id = right_padding(source.tokenizer).pad_token_id
        return log_likelihoods(network, features, mask_id=mask_id, pad_id=pad_id, offset=offset)

    def decode(
        self, data: list[MinimalPair], features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """Both likelihoods of each pair; ties count as wrong."""
        found = [float(total[0]) for total in outputs[Split.TEST]]
        rows = [
            {_UID: pair.uid, "good": good, "bad": bad, "is_correct": good > bad}
            for pair, good, bad in zip(data, found[::2], found[1::2], strict=True)
        ]
        return {Split.TEST: rows}

    def score(
        self, data: list[MinimalPair], predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """`accuracy` over all pairs, and `accuracy_UID` of each paradigm."""
        groups: dict[str, list[float]] = {}
        for row in predictions[Split.TEST]:
            for group in (self.metric, f"{self.metric}_{row[_UID]}"):
                groups.setdefault(group, []).append(float(row["is_correct"]))
        return {Split.TEST: {name: statistics.fmean(correct) for name, correct in groups.items()}}

    def baseline(self, data: list[MinimalPair]) -> float:
        """Accuracy of guessing."""
        return 0.5

    def result_fields(self, data: list[MinimalPair], source: EncoderSource) -> dict[str, Any]:
        """The form that the model was scored in, the number of pairs, and the prepended token, if any."""
        form, _ = choose_form(source, self.settings.form)
        token = token_in_front(source, form)
        front = {} if token is None else {"front": str(source.tokenizer.convert_ids_to_tokens(token))}
        return {"form": form, "pairs": len(data), **front}

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Refuse: nothing is trained."""
        raise NotImplementedError

    def save(self, network: nn.Module, folder: Path, data: list[MinimalPair]) -> None:
        """Refuse: the model is unchanged."""
        raise NotImplementedError


def _text(row: Mapping[str, object], key: str, place: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        shown = f"{value!r}" if key in row else f"only {', '.join(map(repr, row))}"
        raise UserError(f"{place}: expected a string with text in {key!r}, found {shown}. Correct or remove the row.")
    return value
