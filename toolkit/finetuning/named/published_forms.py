"""Files of named data sets: rows of the hub in the form in which each family of tasks reads a data set.

Sequence classification and question answering: JSON lines. Token classification: CoNLL columns. Retrieval: BEIR
folders, in published_retrieval.py. A form says how rows become examples of a split.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from toolkit.core.errors import UserError
from toolkit.finetuning.named.hub_rows import Hub, HubRow, HubRows
from toolkit.finetuning.protocol import PROTOCOLS
from toolkit.finetuning.settings import Split

_SEPARATORS = frozenset("\t\r\n")
_OWN_FILES = "The repository has changed; give files of your own (--train and --test, in place of --dataset)."


@dataclass(frozen=True)
class PublishedForm(ABC):
    """Files of one data set, in a folder of its name.

    `rows` of the hub are by split; retrieval has `corpus` and `queries` too.
    """

    name: str
    rows: Mapping[str, HubRows]

    @property
    @abstractmethod
    def files(self) -> Mapping[Split, str]:
        """Paths in the folder, by split."""

    @abstractmethod
    def write(self, hub: Hub, folder: Path) -> None:
        """Read the rows and write the files."""


class FileOfSplit(PublishedForm):
    """A file of each split; a validation split that is not published is cut off training as the paper's authors do."""

    ending: ClassVar[str]

    @property
    def files(self) -> Mapping[Split, str]:
        """`train`, `validation` and `test`."""
        return {split: f"{split}.{self.ending}" for split in Split}

    def write(self, hub: Hub, folder: Path) -> None:
        """Write three files."""
        published = {Split(split): list(self._examples(hub, source)) for split, source in self.rows.items()}
        for split, examples in PROTOCOLS["paper"].with_validation(published).items():
            with (folder / self.files[split]).open("w", encoding="utf-8") as file:
                file.writelines(f"{example}\n" for example in examples)

    @abstractmethod
    def _examples(self, hub: Hub, source: HubRows) -> Iterator[str]:
        """Each example of a split as it stands in the file, but for the last line break."""


@dataclass(frozen=True)
class ClassifiedTexts(FileOfSplit):
    """JSON lines with `text`, for pairs `text_pair`, from columns of any name, and the name of the class as `label`."""

    text: str
    text_pair: str | None = None
    ending: ClassVar[str] = "jsonl"

    def _examples(self, hub: Hub, source: HubRows) -> Iterator[str]:
        rows = hub.open(source)
        names = rows.class_names("label")
        columns = [self.text] if self.text_pair is None else [self.text, self.text_pair]
        for row in rows.read(*columns, "label"):
            if not 0 <= row["label"] < len(names):
                raise UserError(
                    f"{rows.source}: expected a label from 0 to {len(names) - 1}, got {row['label']}. {_OWN_FILES}"
                )
            texts = dict(zip(("text", "text_pair"), (row[column] for column in columns), strict=False))
            yield json.dumps(texts | {"label": names[row["label"]]}, ensure_ascii=False)


@dataclass(frozen=True)
class TaggedWords(FileOfSplit):
    """CoNLL columns: a word of `tokens`, a tab and its tag on each line, a blank line behind each sentence.

    Attributes:
        tags: column of the tags' numbers.
        labels_file: the repository's JSON file of numbers by tag; None where the column itself has names.
    """

    tags: str
    labels_file: str | None = None
    ending: ClassVar[str] = "conll"

    def _examples(self, hub: Hub, source: HubRows) -> Iterator[str]:
        rows = hub.open(source)
        if self.labels_file is None:
            names = dict(enumerate(rows.class_names(self.tags)))
        else:
            names = {number: tag for tag, number in hub.read_json(source, self.labels_file).items()}
        for number, row in enumerate(rows.read("tokens", self.tags), start=1):
            words, tags = row["tokens"], row[self.tags]
            if len(words) != len(tags) or not set(tags) <= names.keys():
                raise UserError(
                    f"{source}, row {number}: expected a known tag for each word, got {len(words)} words and the tags "
                    f"{tags}. {_OWN_FILES}"
                )
            for word in words:
                if not word or word != word.strip(" ") or not _SEPARATORS.isdisjoint(word):
                    raise UserError(f"{source}, row {number}: columns cannot hold the word {word!r}. {_OWN_FILES}")
            yield "".join(f"{word}\t{names[tag]}\n" for word, tag in zip(words, tags, strict=True))


class AnsweredQuestions(FileOfSplit):
    """JSON lines with the columns that SQuAD has on the hub; `answers` are two lists, `text` and `answer_start`."""

    ending: ClassVar[str] = "jsonl"

    def _examples(self, hub: Hub, source: HubRows) -> Iterator[str]:
        for row in hub.open(source).read("id", "context", "question", "answers"):
            yield json.dumps(row, ensure_ascii=False)


class ClozeQuestions(FileOfSplit):
    """ReCoRD as span extraction: every mention of an answer's entity is a right answer, in the order of the passage.

    The question is the statement with its `@placeholder`.
    """

    ending: ClassVar[str] = "jsonl"

    def _examples(self, hub: Hub, source: HubRows) -> Iterator[str]:
        for row in hub.open(source).read("passage", "query", "entity_spans", "answers", "idx"):
            number = f"{row['idx']['passage']}-{row['idx']['query']}"
            question = {"id": number, "context": row["passage"], "question": row["query"], "answers": _mentions(row)}
            yield json.dumps(question, ensure_ascii=False)


def _mentions(row: HubRow) -> list[HubRow]:
    """Mentions of the answers' entities in the passage, in SQuAD's form."""
    passage, wanted = row["passage"], set(row["answers"])
    spans = zip(row["entity_spans"]["start"], row["entity_spans"]["text"], strict=True)
    found = sorted((start, text) for start, text in spans if text in wanted and passage.startswith(text, start))
    if not wanted or {text for _, text in found} != wanted:
        raise UserError(
            f"ReCoRD, passage {row['idx']['passage']}: the answers {sorted(wanted)} are not among its marked entities. "
            f"{_OWN_FILES}"
        )
    return [{"text": text, "answer_start": start} for start, text in found]
