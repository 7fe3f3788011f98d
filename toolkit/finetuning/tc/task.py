"""Token classification (`tc`): entities in sentences of words, from CoNLL columns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn
from transformers import AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from toolkit.core.errors import UserError
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.settings import Split
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.task import IGNORED, ClassesOfTokens, Outputs, Prediction
from toolkit.finetuning.tc.conll import TaggedFile, TaggedSentence, read_conll
from toolkit.finetuning.tc.tag_schemes import OUTSIDE, TagScheme, entity_scores, rewritten, sentence_macro_f1
from toolkit.finetuning.tc.word_inputs import NO_WORD, paper_word_inputs, word_inputs
from toolkit.finetuning.trainer import Features


@dataclass(frozen=True)
class TaggedText:
    """Sentences of all splits, the scheme of each file, and the tags that the network chooses from."""

    schemes: Mapping[Split, TagScheme]
    sentences: Mapping[Split, Sequence[TaggedSentence]]
    tags: tuple[str, ...]
    """`O`, then B- and I- of every type of the training split."""

    def classes(self, split: Split) -> list[list[int]]:
        """Tags of each sentence, in IOB2, as numbers."""
        index = {tag: number for number, tag in enumerate(self.tags)}
        return [[index[tag] for tag in rewritten(row.tags, TagScheme.IOB2)] for row in self.sentences[split]]


class TokenClassification(ClassesOfTokens[TaggedText]):
    """A tag for each word, by a linear layer over its first token (`paper`: over each of its tokens)."""

    name: ClassVar[str] = "tc"
    pipeline: ClassVar[str] = "token-classification"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "f1", "paper": "paper_f1"}
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {"standard": ("precision", "recall")}

    def read(self, files: Mapping[Split, Path]) -> TaggedText:
        """Sentences of CoNLL files, with entities of types that the training file has."""
        tagged = {split: read_conll(path) for split, path in files.items()}
        types = _types(tagged)
        sentences = self.protocol.with_validation({split: file.sentences for split, file in tagged.items()})
        schemes = {split: tagged.get(split, tagged[Split.TRAIN]).scheme for split in sentences}
        return TaggedText(schemes, sentences, (OUTSIDE, *(f"{letter}-{kind}" for kind in types for letter in "BI")))

    def encode(self, data: TaggedText, source: EncoderSource) -> Mapping[Split, Features]:
        """Sentences as texts; long ones in windows (`paper`: cut off)."""
        features: dict[Split, Features] = {}
        for split, sentences in data.sentences.items():
            classes = data.classes(split)
            build = paper_word_inputs if self.is_paper else word_inputs
            inputs = build([sentence.tokens for sentence in sentences], source)
            for row in inputs:
                row["labels"] = _labels(data, row["words"], row["blanks"], classes[row["sentence"]])
            features[split] = inputs
        if not features[Split.TRAIN]:
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
        """A tag for each word: what most of its answering tokens say, and `O` where there is none.

        `prediction` is written in the file's own scheme; `classes` are the network's answers, None for words that were
        not answered.
        """
        return {split: _decoded(data, split, features[split], answers) for split, answers in outputs.items()}

    def score(
        self, data: TaggedText, predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """`precision`, `recall` and `f1` of entities, micro-averaged; under `paper`, `paper_f1`."""
        scores = {}
        for split, rows in predictions.items():
            if self.is_paper:
                scores[split] = {"paper_f1": sentence_macro_f1(data.classes(split), [row["classes"] for row in rows])}
            else:
                truth = [sentence.tags for sentence in data.sentences[split]]
                scores[split] = entity_scores(truth, [row["prediction"] for row in rows])
        return scores

    def row(self, prediction: Prediction) -> Prediction:
        """The tags alone."""
        return {"prediction": prediction["prediction"]}

    @staticmethod
    def usage(model: Path) -> str:
        """A pipeline."""
        made = f"transformers.pipeline('token-classification', model={str(model)!r}, aggregation_strategy='first')"
        return f"{made}('a text')"

    def baseline(self, data: TaggedText) -> float:
        """The main metric where every word has the training split's most frequent tag."""
        counts = Counter(number for classes in data.classes(Split.TRAIN) for number in classes)
        [(majority, _)] = counts.most_common(1)
        lengths = [len(sentence.tokens) for sentence in data.sentences[Split.TEST]]
        rows = [_prediction(data, Split.TEST, [majority] * length) for length in lengths]
        return self.score(data, {Split.TEST: rows})[Split.TEST][self.metric]


def _types(files: Mapping[Split, TaggedFile]) -> list[str]:
    train = files[Split.TRAIN]
    types = sorted({tag[2:] for sentence in train.sentences for tag in sentence.tags if tag != OUTSIDE})
    if not types:
        raise UserError(f"{train.path}: every tag is O. Give a training file with entities.")
    known = {OUTSIDE[2:], *types}
    for file in files.values():
        rows = (row for sentence in file.sentences for row in zip(sentence.tags, sentence.lines, strict=True))
        unknown = next(((tag[2:], line) for tag, line in rows if tag[2:] not in known), None)
        if unknown is not None:
            raise UserError(
                f"{file.path}, line {unknown[1]}: the type {unknown[0]!r} does not occur in the training file "
                f"{train.path}, which has {', '.join(types)}. Replace such tags by O, or add training sentences with "
                "that type."
            )
    return types


def _labels(data: TaggedText, words: Sequence[int], blanks: Sequence[int], classes: Sequence[int]) -> list[int]:
    """Label of each token: its word's tag, or that of the blank, which is inside an entity or outside.

    Without a label, whatever is predicted for a blank would reach those who use the model through `pipeline`.
    """
    labels = [IGNORED if word == NO_WORD else classes[word] for word in words]
    for place, word in enumerate(blanks):
        if word != NO_WORD:
            labels[place] = classes[word] if data.tags[classes[word]].startswith("I-") else 0
    return labels


def _decoded(data: TaggedText, split: Split, features: Features, answers: Outputs) -> list[Prediction]:
    sentences = data.sentences[split]
    votes: list[list[list[int]]] = [[[] for _ in sentence.tokens] for sentence in sentences]
    for row, logits in zip(features, answers, strict=True):
        for word, vote in zip(row["words"], logits.argmax(axis=-1).tolist(), strict=True):
            if word != NO_WORD:
                votes[row["sentence"]][word].append(vote)
    return [
        # Of tags with equally many votes the first one, which is O if it is among them.
        _prediction(data, split, [int(np.bincount(of_word).argmax()) if of_word else None for of_word in of_sentence])
        for of_sentence in votes
    ]


def _prediction(data: TaggedText, split: Split, classes: Sequence[int | None]) -> Prediction:
    tags = [OUTSIDE if number is None else data.tags[number] for number in classes]
    scheme = data.schemes[split]
    return {"prediction": tags if scheme is TagScheme.IOB2 else rewritten(tags, scheme), "classes": list(classes)}
