"""Files of named data sets: rows of the hub in the form in which each family of tasks reads a data set.

Sequence classification: JSON lines. Token classification: CoNLL columns. Question answering: SQuAD JSON. Retrieval:
BEIR folders, in published_retrieval.py.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.finetuning.hub_rows import Hub, HubRows, OpenRows, Row
from toolkit.finetuning.paper import split_training
from toolkit.finetuning.task import Split

Question = dict[str, Any]
"""A question in SQuAD's form, with the title and the context that SQuAD JSON keeps one level above."""


class PublishedForm(ABC):
    """Files of one data set.

    Attributes:
        name: of the folder that holds them.
    """

    name: str

    @property
    @abstractmethod
    def files(self) -> Mapping[Split, str]:
        """Paths in the folder, by split."""

    @property
    @abstractmethod
    def sources(self) -> Sequence[HubRows]:
        """The rows of the hub that the files are made of."""

    @abstractmethod
    def write(self, hub: Hub, folder: Path) -> None:
        """Read the rows and write the files.

        Raises:
            UserError: the hub cannot be read, or holds something else than is declared.
            OSError: a file cannot be written.
        """


@dataclass(frozen=True)
class ClassifiedTexts(PublishedForm):
    """JSON lines with `text`, for pairs `text_pair`, and the name of the class as `label`.

    `validation` is 5 % of the published training split, as `split_training` draws them, and is left out of `train`.

    Attributes:
        text: column of the text.
        text_pair: column of a pair's second text.
    """

    name: str
    train: HubRows
    test: HubRows
    text: str
    text_pair: str | None = None

    @property
    def files(self) -> Mapping[Split, str]:
        """A file of each split."""
        return {split: f"{split}.jsonl" for split in Split}

    @property
    def sources(self) -> Sequence[HubRows]:
        """Train and test."""
        return self.train, self.test

    def write(self, hub: Hub, folder: Path) -> None:
        """Write three files."""
        training, test = (list(self._lines(hub.open(source))) for source in self.sources)
        train_rows, validation_rows = split_training(len(training))
        _write_lines(folder / self.files[Split.TRAIN], (training[row] for row in train_rows))
        _write_lines(folder / self.files[Split.VALIDATION], (training[row] for row in validation_rows))
        _write_lines(folder / self.files[Split.TEST], test)

    def _lines(self, rows: OpenRows) -> Iterator[str]:
        names = rows.class_names("label")
        columns = [self.text] if self.text_pair is None else [self.text, self.text_pair]
        for row in rows.read(*columns, "label"):
            if not 0 <= row["label"] < len(names):
                raise UserError(
                    f"{rows.source}: a row without a label ({row['label']}), which only the unpublished test split "
                    "should have. The repository has changed; give files of your own (--train and --test)."
                )
            texts = dict(zip(("text", "text_pair"), (row[column] for column in columns), strict=False))
            yield json.dumps(texts | {"label": names[row["label"]]}, ensure_ascii=False)


@dataclass(frozen=True)
class TaggedWords(PublishedForm):
    """CoNLL columns: a word, a tab and its tag on each line, a blank line behind each sentence.

    Attributes:
        splits: rows of each split.
        words: column of the words.
        tags: column of the tags' numbers.
        labels_file: the repository's JSON file of numbers by tag; None where the column itself has names.
    """

    name: str
    splits: Mapping[Split, HubRows]
    words: str
    tags: str
    labels_file: str | None = None

    @property
    def files(self) -> Mapping[Split, str]:
        """A file of each split."""
        return {split: f"{split}.conll" for split in Split}

    @property
    def sources(self) -> Sequence[HubRows]:
        """One of each split."""
        return tuple(self.splits.values())

    def write(self, hub: Hub, folder: Path) -> None:
        """Write a file of each split."""
        for split, source in self.splits.items():
            _write_lines(folder / self.files[split], self._sentences(hub, source))

    def _sentences(self, hub: Hub, source: HubRows) -> Iterator[str]:
        rows = hub.open(source)
        if self.labels_file is None:
            names = dict(enumerate(rows.class_names(self.tags)))
        else:
            names = {number: tag for tag, number in hub.read_json(source, self.labels_file).items()}
        for number, row in enumerate(rows.read(self.words, self.tags), start=1):
            words, tags = row[self.words], row[self.tags]
            if len(words) != len(tags) or not set(tags) <= names.keys():
                raise UserError(f"{source}, row {number}: {len(words)} words and {len(tags)} tags, or unknown tags.")
            for word in words:
                if word.split() != [word]:
                    raise UserError(
                        f"{source}, row {number}: the word {word!r} has blanks, which CoNLL columns cannot hold."
                    )
            yield "".join(f"{word}\t{names[tag]}\n" for word, tag in zip(words, tags, strict=True))


@dataclass(frozen=True)
class AnsweredQuestions(PublishedForm):
    """SQuAD JSON.

    `validation` is 5 % of the published training questions, as `split_training` draws them, and is left out of `train`.

    Attributes:
        version: 1.1, or 2.0 where questions may have no answer.
    """

    name: str
    train: HubRows
    test: HubRows
    version: str = "1.1"

    @property
    def files(self) -> Mapping[Split, str]:
        """A file of each split."""
        return {split: f"{split}.json" for split in Split}

    @property
    def sources(self) -> Sequence[HubRows]:
        """Train and test."""
        return self.train, self.test

    def write(self, hub: Hub, folder: Path) -> None:
        """Write three files, the questions in the hub's order."""
        training, test = (list(self._questions(hub.open(source))) for source in self.sources)
        train_rows, validation_rows = split_training(len(training))
        for split, questions in (
            (Split.TRAIN, [training[row] for row in sorted(train_rows)]),
            (Split.VALIDATION, [training[row] for row in sorted(validation_rows)]),
            (Split.TEST, test),
        ):
            content = {"version": self.version, "data": list(_articles(questions))}
            (folder / self.files[split]).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    def _questions(self, rows: OpenRows) -> Iterator[Question]:
        for row in rows.read("id", "title", "context", "question", "answers"):
            found = row["answers"]
            pairs = zip(found["text"], found["answer_start"], strict=True)
            question = {key: row[key] for key in ("id", "title", "context", "question")}
            question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
            if self.version == "2.0":
                question["is_impossible"] = not question["answers"]
            yield question


class ClozeQuestions(AnsweredQuestions):
    """ReCoRD as span extraction: every mention of an answer's entity in the passage is a right answer.

    The question is the statement with its `@placeholder`. The first answer is the first mention of the first entity.
    """

    def _questions(self, rows: OpenRows) -> Iterator[Question]:
        for row in rows.read("passage", "query", "entity_spans", "answers", "idx"):
            number = f"{row['idx']['passage']}-{row['idx']['query']}"
            starts = _mentions(row)
            answers = [{"text": text, "answer_start": start} for text in row["answers"] for start in starts[text]]
            question = {"title": str(row["idx"]["passage"]), "context": row["passage"], "question": row["query"]}
            yield {"id": number, **question, "answers": answers}


def _mentions(row: Row) -> dict[str, list[int]]:
    """Where the entities of each answer stand in the passage."""
    passage, spans = row["passage"], row["entity_spans"]
    starts: dict[str, list[int]] = {text: [] for text in row["answers"]}
    for text, start in sorted(zip(spans["text"], spans["start"], strict=True), key=lambda span: span[1]):
        if text in starts and passage.startswith(text, start):
            starts[text].append(start)
    missing = [text for text, found in starts.items() if not found]
    if missing or not starts:
        raise UserError(f"ReCoRD, passage {row['idx']['passage']}: no mention of the answers {missing} in the passage.")
    return starts


def _articles(questions: Iterable[Question]) -> Iterator[Mapping[str, Any]]:
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


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
