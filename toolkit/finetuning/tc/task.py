"""Token classification (`tc`): entities in sentences of words, or a class for each word."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ValidationInfo, field_validator
from torch import nn
from transformers import AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRowError, BadRows, CheckedData, Labels
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.settings import FinetuningSettings, Split
from toolkit.finetuning.task import IGNORED, ClassesOfTokens, Outputs, Prediction
from toolkit.finetuning.tc.conll import TaggedFile, TaggedSentence, read_tagged
from toolkit.finetuning.tc.tag_schemes import (
    OUTSIDE,
    TagScheme,
    class_scores,
    entity_scores,
    is_tag,
    rewritten,
    sentence_macro_f1,
)
from toolkit.finetuning.tc.word_inputs import NO_WORD, paper_word_inputs, word_inputs
from toolkit.finetuning.trainer import Features


class TokenClassificationSettings(FinetuningSettings):
    """Fine-tuning for token classification."""

    label_type: Literal["entity", "class"] = "entity"
    """`entity`: tags mark entities. `class`: each tag is the class of its word, such as a part of speech."""
    label_column: str | None = None
    """Column of the tags: its number, from 1, in CoNLL files, its name in tables. Unset: the last one, and `ner_tags`
    or `tags`."""

    @field_validator("label_type")
    @classmethod
    def _paper_has_entities(cls, value: str, info: ValidationInfo) -> str:
        if value != "entity" and info.data.get("protocol") == "paper":
            raise ValueError("the protocol 'paper' has entities only. Choose the protocol 'standard'")
        return value


@dataclass(frozen=True)
class TaggedText(CheckedData):
    """Sentences of all splits, the scheme of each file, and the tags that the network chooses from."""

    schemes: Mapping[Split, TagScheme]
    sentences: Mapping[Split, Sequence[TaggedSentence]]
    tags: tuple[str, ...]
    """`O`, then B- and I- of every type of the training split; or its classes, the most frequent one first."""
    has_classes: bool
    """Whether tags are classes of words."""

    def classes(self, split: Split) -> list[list[int] | None]:
        """Tags of each sentence, in IOB2, as numbers; None if untagged."""
        index = {tag: number for number, tag in enumerate(self.tags)}
        own = (row.tags for row in self.sentences[split])
        plain = own if self.has_classes else (None if tags is None else rewritten(tags, TagScheme.IOB2) for tags in own)
        return [None if tags is None else [index[tag] for tag in tags] for tags in plain]


class TokenClassification(ClassesOfTokens[TaggedText]):
    """A tag for each word, by a linear layer over its first token (`paper`: over each of its tokens)."""

    name: ClassVar[str] = "tc"
    pipeline: ClassVar[str] = "token-classification"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "f1", "paper": "paper_f1"}
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {"standard": ("precision", "recall")}
    Settings: ClassVar[type[FinetuningSettings]] = TokenClassificationSettings
    settings: TokenClassificationSettings

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of the label type."""
        return ("accuracy", "f1_macro") if self.settings.label_type == "class" else super().metric_names

    def read(self, files: Mapping[Split, DataFile]) -> TaggedText:
        """Read sentences of words, with tags that occur in the training file."""
        bad = BadRows(self.settings.bad_rows)
        tagged = {split: self._read(file, bad) for split, file in files.items()}
        train = tagged[Split.TRAIN]
        if unlabelled := [sentence for sentence in train.sentences if sentence.tags is None]:
            place = unlabelled[0].places[0]
            raise UserError(f"{train.path}, {place}: no tags. Give a training file with a tag for each token.")
        has_classes = self.settings.label_type == "class"
        tags = _classes_of(train) if has_classes else _tags_of(train)
        sentences = {
            split: _known(file, tags, str if has_classes else _type, train, bad) for split, file in tagged.items()
        }
        is_scored = any(sentence.tags for sentence in sentences[Split.TEST])
        if Split.VALIDATION in tagged and not any(sentence.tags for sentence in sentences[Split.VALIDATION]):
            path = tagged[Split.VALIDATION].path
            raise UserError(f"{path}: no row has tags. Give another file, or none (--validation).")
        cut = self.with_validation(sentences)
        schemes = {split: tagged.get(split, train).scheme or train.scheme or TagScheme.IOB2 for split in cut}
        return TaggedText(schemes, cut, tags, has_classes, bad=bad, is_scored=is_scored)

    def notes(self, data: TaggedText) -> dict[str, Any]:
        """The training file's scheme."""
        return {"scheme": data.schemes[Split.TRAIN]}

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> TaggedText:
        """Read sentences; of tags in the file, only the scheme."""
        bad = BadRows(self.settings.bad_rows)
        read = self._read(file, bad, labels=Labels.UNUSED)
        names = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
        sentences = [replace(sentence, tags=None) for sentence in read.sentences]
        schemes = {Split.TEST: read.scheme or TagScheme(notes["scheme"])}
        tags = tuple(names[number] for number in sorted(names, key=int))
        return TaggedText(schemes, {Split.TEST: sentences}, tags, self.settings.label_type == "class", bad=bad)

    def load(self, source: EncoderSource, data: TaggedText) -> nn.Module:
        """The stock class for token classification."""
        loaded: nn.Module = AutoModelForTokenClassification.from_pretrained(source.model, config=source.config)
        return loaded

    def _read(self, file: DataFile, bad: BadRows, *, labels: Labels = Labels.NEEDED) -> TaggedFile:
        kind, column = self.settings.label_type, self.settings.label_column
        return read_tagged(file, bad, label_type=kind, label_column=column, labels=labels)

    def encode(self, data: TaggedText, source: EncoderSource) -> Mapping[Split, Features]:
        """Sentences as texts; long ones in windows (`paper`: truncated)."""
        features: dict[Split, Features] = {}
        for split, sentences in data.sentences.items():
            classes = data.classes(split)
            build = paper_word_inputs if self.is_paper else word_inputs
            inputs = build([sentence.tokens for sentence in sentences], source)
            for row in inputs:
                of_sentence = classes[row["sentence"]]
                row["labels"] = None if of_sentence is None else _labels(data, row["words"], row["blanks"], of_sentence)
            features[split] = inputs
        if Split.TRAIN in features and not features[Split.TRAIN]:
            raise UserError(
                f"the tokenizer of {source.model} leaves nothing of the training sentences. Check their encoding."
            )
        return features

    def network(self, data: TaggedText, source: EncoderSource) -> nn.Module:
        """The stock class for token classification; `paper`: without dropout before the linear layer."""
        if type(source.config) not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
            raise UserError(
                f"transformers has no token classification for {source.model} ({source.config.model_type}). "
                "Use an encoder that it has one for, such as EuroBERT, BERT, RoBERTa or ModernBERT."
            )
        changes: dict[str, Any] = {"classifier_dropout": 0.0} if self.is_paper else {}
        return load_network(AutoModelForTokenClassification, source, labels=data.tags, **changes)

    def decode(
        self, data: TaggedText, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """A tag for each word: the majority of its answering tokens; without any, `O` or the most frequent class.

        `prediction` is in the file's own scheme; `classes` are the network's answers, None for words that were not
        answered.
        """
        return {split: _decoded(data, split, features[split], answers) for split, answers in outputs.items()}

    def score(
        self, data: TaggedText, predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """`precision`, `recall` and `f1` of entities, micro-averaged; for classes, `accuracy` and `f1_macro`.

        Under `paper`, `paper_f1`. Untagged sentences are left out, as are splits with only such sentences.
        """
        scores = {}
        measure = class_scores if data.has_classes else entity_scores
        for split, rows in predictions.items():
            classes = data.classes(split)
            tagged = [number for number, tags in enumerate(classes) if tags is not None]
            if not any(classes[number] for number in tagged):
                continue
            if self.is_paper:
                answers = [rows[number]["classes"] for number in tagged]
                truth = [tags for tags in classes if tags is not None]
                scores[split] = {"paper_f1": sentence_macro_f1(truth, answers)}
            else:
                own = [data.sentences[split][number].tags or () for number in tagged]
                scores[split] = measure(own, [rows[number]["prediction"] for number in tagged])
        return scores

    def row(self, prediction: Prediction) -> Prediction:
        """Only the tags."""
        return {"prediction": prediction["prediction"]}

    @staticmethod
    def usage(model: Path) -> str:
        """A pipeline."""
        made = f"transformers.pipeline('token-classification', model={str(model)!r}, aggregation_strategy='first')"
        return f"{made}('a text')"

    def baseline(self, data: TaggedText) -> float | None:
        """Main metric if every word gets the training split's most frequent tag."""
        if not data.is_scored:
            return None
        counts = Counter(number for classes in data.classes(Split.TRAIN) for number in classes or ())
        [(majority, _)] = counts.most_common(1)
        lengths = [len(sentence.tokens) for sentence in data.sentences[Split.TEST]]
        rows = [_prediction(data, Split.TEST, [majority] * length) for length in lengths]
        return self.score(data, {Split.TEST: rows})[Split.TEST][self.metric]


def _classes_of(train: TaggedFile) -> tuple[str, ...]:
    counts = Counter(tag for sentence in train.sentences for tag in sentence.tags or ())
    if len(counts) < 2:
        raise UserError(f"{train.path}: every word has the class {next(iter(counts), None)!r}. Give other data.")
    return tuple(sorted(counts, key=lambda tag: (-counts[tag], tag)))


def _tags_of(train: TaggedFile) -> tuple[str, ...]:
    types = sorted({_type(tag) for sentence in train.sentences for tag in sentence.tags or () if tag != OUTSIDE})
    if not types:
        raise UserError(f"{train.path}: every tag is O. Give a training file with entities.")
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in types for letter in "BI"))


def _type(tag: str) -> str:
    """Entity type of a tag; in IO, the tag itself."""
    return tag[2:] if is_tag(tag) else tag


def _known(
    file: TaggedFile, tags: Sequence[str], type_of: Callable[[str], str], train: TaggedFile, bad: BadRows
) -> list[TaggedSentence]:
    """Sentences of a file, except those with types that the training file, with these tags, does not have."""
    known = dict.fromkeys(map(type_of, tags))
    noun, instead = ("type", " by O") if tags[0] == OUTSIDE else ("class", "")

    def check(sentence: TaggedSentence) -> TaggedSentence:
        for tag, place in zip(sentence.tags or (), sentence.places, strict=False):
            if (kind := type_of(tag)) not in known:
                problem = f"the {noun} {kind!r} does not occur in the training file {train.path}, which has "
                raise BadRowError(
                    f"{file.path}, {place}",
                    f"{problem}{', '.join(filter(None, known))}",
                    f"Replace such tags{instead}, or add training sentences with that {noun}.",
                    reason=f"the {noun} {kind!r} does not occur in the training file",
                )
        if sentence.tags is None:
            bad.note(file.path, "without tags: predicted, not scored", sentence.places[0])
        return sentence

    return bad.each(file.path, file.sentences, check)


def _labels(data: TaggedText, words: Sequence[int], blanks: Sequence[int], classes: Sequence[int]) -> list[int]:
    """Label of each token: its word's tag; for a blank before a word, the word's tag if that is I- or a class, else O.

    Without a label, arbitrary predictions for blanks would reach users of the model through `pipeline`.
    """
    labels = [IGNORED if word == NO_WORD else classes[word] for word in words]
    for place, word in enumerate(blanks):
        if word != NO_WORD:
            is_inside = data.has_classes or data.tags[classes[word]].startswith("I-")
            labels[place] = classes[word] if is_inside else 0
    return labels


def _decoded(data: TaggedText, split: Split, features: Features, answers: Outputs) -> list[Prediction]:
    sentences = data.sentences[split]
    votes: list[list[list[int]]] = [[[] for _ in sentence.tokens] for sentence in sentences]
    for row, logits in zip(features, answers, strict=True):
        for word, vote in zip(row["words"], logits.argmax(axis=-1).tolist(), strict=True):
            if word != NO_WORD:
                votes[row["sentence"]][word].append(vote)
    return [
        # Ties go to the first tag, which is O if it is among them.
        _prediction(data, split, [int(np.bincount(of_word).argmax()) if of_word else None for of_word in of_sentence])
        for of_sentence in votes
    ]


def _prediction(data: TaggedText, split: Split, classes: Sequence[int | None]) -> Prediction:
    # The first tag is O, or the most frequent class.
    tags = [data.tags[number or 0] for number in classes]
    scheme = data.schemes[split]
    is_own = data.has_classes or scheme is TagScheme.IOB2
    return {"prediction": tags if is_own else rewritten(tags, scheme), "classes": list(classes)}
