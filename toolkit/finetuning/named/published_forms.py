"""Forms of named data sets: how rows of the hub become the table of a split that a family of tasks reads.

Retrieval, which needs documents and queries as well as judgements, is in published_retrieval.py.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.finetuning.named.hub_rows import OWN_FILES, HubRow, HubRows
from toolkit.finetuning.protocol import cut_validation
from toolkit.finetuning.settings import Split
from toolkit.tables import TableFile, read_table

LocalFiles = Mapping[str, Sequence[Path]]
"""Files of each entry of a form's `rows`."""


@dataclass(frozen=True)
class PublishedForm(ABC):
    """Format of hub rows. `rows` are by split; retrieval also has `corpus` and `queries`, which splits share."""

    name: str
    rows: Mapping[str, HubRows]

    @property
    def splits(self) -> Sequence[Split]:
        """Splits that have rows."""
        return tuple(split for split in Split if split in self.rows)

    def uses(self, split: Split) -> Sequence[str]:
        """Keys of `rows` that a split is read from."""
        return tuple(self.rows)


@dataclass(frozen=True)
class PublishedSplit:
    """A split of a named data set, in place of a user's file."""

    form: PublishedForm
    split: Split
    files: LocalFiles

    def __str__(self) -> str:
        return f"{self.form.name} {self.split}"

    @property
    def named_files(self) -> Mapping[str, Path]:
        """Files that the split is read from, by names that do not depend on the commit."""
        return {f"{use}/{file.name}": file for use in self.form.uses(self.split) for file in self.files[use]}


DataFile = Path | PublishedSplit
"""Source of a split."""


def table_of(file: DataFile) -> TableFile:
    """The rows of a split."""
    if isinstance(file, Path):
        return read_table(file)
    assert isinstance(file.form, TableForm)
    return file.form.table(file.split, file.files)


class TableForm(PublishedForm):
    """A table for each split; an unpublished validation split is cut from training as the paper's authors do."""

    @property
    def splits(self) -> Sequence[Split]:
        """All splits."""
        return tuple(Split)

    def uses(self, split: Split) -> Sequence[str]:
        """The split's own rows, or those of training."""
        return (split if split in self.rows else Split.TRAIN, *(["labels"] if "labels" in self.rows else []))

    def table(self, split: Split, files: LocalFiles) -> TableFile:
        """The rows of a split."""
        use = self.uses(split)[0]
        rows: Sequence[dict[str, Any]] = list(self._examples(use, files))
        if use == Split.TRAIN and Split.VALIDATION not in self.rows:
            rows = cut_validation({Split.TRAIN: rows})[split]
        return TableFile(Path(f"{self.rows[use]}"), tuple(rows[0]), list(rows))

    @abstractmethod
    def _examples(self, use: str, files: LocalFiles) -> Iterator[dict[str, Any]]:
        """Yield rows in the format of a user's file, from an entry of `rows`."""


@dataclass(frozen=True)
class ClassifiedTexts(TableForm):
    """Rows with `text`, for pairs also `text_pair`, from columns of any name, and the class name as `label`."""

    text: str
    labels: Sequence[str]
    text_pair: str | None = None

    def _examples(self, use: str, files: LocalFiles) -> Iterator[dict[str, Any]]:
        columns = [self.text] if self.text_pair is None else [self.text, self.text_pair]
        for row in self.rows[use].read(files[use], *columns, "label"):
            if not 0 <= row["label"] < len(self.labels):
                raise UserError(
                    f"{self.rows[use]}: expected a label from 0 to {len(self.labels) - 1}, got {row['label']}. "
                    f"{OWN_FILES}"
                )
            texts = zip(("text", "text_pair"), (row[column] for column in columns), strict=False)
            yield {**dict(texts), "label": self.labels[row["label"]]}


@dataclass(frozen=True)
class TaggedWords(TableForm):
    """Rows with `tokens` and their `tags`, from tag numbers.

    Attributes:
        tags: column of the tag numbers.
        labels: tags by number; empty if `rows` has `labels`, a JSON file of numbers by tag.
    """

    tags: str
    labels: Sequence[str] = ()

    def _examples(self, use: str, files: LocalFiles) -> Iterator[dict[str, Any]]:
        names = dict(enumerate(self.labels))
        for file in files.get("labels", ()):
            names = {number: tag for tag, number in json.loads(file.read_text(encoding="utf-8")).items()}
        for number, row in enumerate(self.rows[use].read(files[use], "tokens", self.tags), start=1):
            words, tags = row["tokens"], row[self.tags]
            if len(words) != len(tags) or not set(tags) <= names.keys():
                raise UserError(
                    f"{self.rows[use]}, row {number}: expected a known tag for each word, got {len(words)} words and "
                    f"the tags {tags}. {OWN_FILES}"
                )
            yield {"tokens": words, "tags": [names[tag] for tag in tags]}


class AnsweredQuestions(TableForm):
    """Rows with the columns of SQuAD on the hub; `answers` are two lists, `text` and `answer_start`."""

    def _examples(self, use: str, files: LocalFiles) -> Iterator[dict[str, Any]]:
        columns = ("id", "context", "question", "answers")
        yield from ({name: row[name] for name in columns} for row in self.rows[use].read(files[use], *columns))


class ClozeQuestions(TableForm):
    """ReCoRD as span extraction: every mention of an answer's entity is a correct answer, in passage order.

    The question is the statement with its `@placeholder`.
    """

    def _examples(self, use: str, files: LocalFiles) -> Iterator[dict[str, Any]]:
        for row in self.rows[use].read(files[use], "passage", "query", "entity_spans", "answers", "idx"):
            number = f"{row['idx']['passage']}-{row['idx']['query']}"
            yield {"id": number, "context": row["passage"], "question": row["query"], "answers": _mentions(row)}


def _mentions(row: HubRow) -> list[HubRow]:
    """Mentions of the answers' entities in the passage, in SQuAD's form."""
    passage, wanted = row["passage"], set(row["answers"])
    spans = zip(row["entity_spans"]["start"], row["entity_spans"]["text"], strict=True)
    found = sorted((start, text) for start, text in spans if text in wanted and passage.startswith(text, start))
    if not wanted or {text for _, text in found} != wanted:
        raise UserError(
            f"ReCoRD, passage {row['idx']['passage']}: the answers {sorted(wanted)} are not among its marked entities. "
            f"{OWN_FILES}"
        )
    return [{"text": text, "answer_start": start} for start, text in found]
