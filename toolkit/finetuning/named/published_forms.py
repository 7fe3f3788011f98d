"""Files of named data sets: rows of the hub in the form in which each family of tasks reads a data set.

Sequence classification: JSON lines. Token classification: CoNLL columns. Question answering: SQuAD JSON. Retrieval:
BEIR folders, in published_retrieval.py. A form says how rows become examples of a split, and what a file of them holds.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from toolkit.core.errors import UserError
from toolkit.finetuning.named.hub_rows import Hub, HubRow, HubRows, OpenRows
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
                file.writelines(self._content(examples))

    @abstractmethod
    def _examples(self, hub: Hub, source: HubRows) -> Iterator[Any]: ...

    def _content(self, examples: Sequence[Any]) -> Iterable[str]:
        return (f"{example}\n" for example in examples)


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


@dataclass(frozen=True)
class AnsweredQuestions(FileOfSplit):
    """SQuAD JSON, with the questions in the hub's order; version 1.1, or 2.0 where they may have no answer."""

    version: str = "1.1"
    ending: ClassVar[str] = "json"

    def _examples(self, hub: Hub, source: HubRows) -> Iterator[tuple[int, HubRow]]:
        """Questions in SQuAD's form, with the title and the context that SQuAD JSON keeps one level above."""
        return enumerate(self._questions(hub.open(source)))

    def _questions(self, rows: OpenRows) -> Iterator[HubRow]:
        for row in rows.read("id", "title", "context", "question", "answers"):
            found = row["answers"]
            pairs = zip(found["text"], found["answer_start"], strict=True)
            question = {key: row[key] for key in ("id", "title", "context", "question")}
            question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
            if self.version == "2.0":
                question["is_impossible"] = not question["answers"]
            yield question

    def _content(self, examples: Sequence[Any]) -> Iterable[str]:
        questions = [question for _, question in sorted(examples, key=lambda example: example[0])]
        yield json.dumps({"version": self.version, "data": list(_articles(questions))}, ensure_ascii=False)


class ClozeQuestions(AnsweredQuestions):
    """ReCoRD as span extraction: every mention of an answer's entity is a right answer, in the order of the passage.

    The question is the statement with its `@placeholder`.
    """

    def _questions(self, rows: OpenRows) -> Iterator[HubRow]:
        for row in rows.read("passage", "query", "entity_spans", "answers", "idx"):
            number = f"{row['idx']['passage']}-{row['idx']['query']}"
            question = {"title": str(row["idx"]["passage"]), "context": row["passage"], "question": row["query"]}
            yield {"id": number, **question, "answers": _mentions(row)}


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


def _articles(questions: Iterable[HubRow]) -> Iterator[HubRow]:
    """SQuAD's nesting of questions that follow one another: articles of paragraphs of questions."""
    above = ("title", "context")
    for title, article in groupby(questions, key=lambda question: question["title"]):
        paragraphs = [
            {
                "context": context,
                "qas": [{key: value for key, value in each.items() if key not in above} for each in paragraph],
            }
            for context, paragraph in groupby(article, key=lambda question: question["context"])
        ]
        yield {"title": title, "paragraphs": paragraphs}
