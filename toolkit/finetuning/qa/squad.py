"""Readers of questions about a context: SQuAD's JSON (v1 and v2), ReCoRD's, and tables with the hub's columns.

All become `Question`s whose answers are spans of the context. ReCoRD's queries have a `@placeholder`; every mention of
the missing entity is an answer.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.text import counted, json_kind
from toolkit.finetuning.bad_rows import BadRowError, BadRows, Labels
from toolkit.finetuning.named.published_forms import DataFile, table_of
from toolkit.tables import load_json, read_text

_Read = Callable[[Labels], "Question"]
"""Returns a question, or raises an error that says what is wrong with it."""
_FORMATS = "Give SQuAD's .json, ReCoRD's .jsonl, or a .jsonl or .parquet table of id, context, question and answers."


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: `text` begins at character `start`."""

    start: int
    text: str

    @property
    def end(self) -> int:
        """Position of the first character after the span."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context; `answers` are empty if the context has none, None if unknown."""

    id: str | int
    context: str
    question: str
    answers: tuple[Answer, ...] | None


def read_questions(file: DataFile, bad: BadRows, *, labels: Labels = Labels.NEEDED) -> list[Question]:
    """Read the questions of a file in one of the published formats, in file order."""
    if isinstance(file, Path) and file.suffix.lower() == ".json":
        reads = list(_from_articles(file, _member(str(file), _parse(file), "data", list)))
    elif isinstance(file, Path) and file.suffix.lower() not in (".jsonl", ".parquet"):
        kind = "a folder" if file.is_dir() else f"a {file.suffix} file" if file.suffix else "a file without an ending"
        raise UserError(f"{file}: expected a file of questions, got {kind}. {_FORMATS}")
    else:
        table = table_of(file)
        file, rows = table.path, enumerate(table.rows, start=1)
        reads = [read for number, row in rows for read in _from_row(file, f"{file}, row {number}", row)]
    questions = bad.each(file, reads, lambda read: read(labels))
    if not questions:
        raise UserError(f"{file}: no questions in this file. {_FORMATS}")
    return questions


def _parse(path: Path) -> Any:
    text = read_text(path, what_to_give=_FORMATS)
    try:
        return load_json(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not valid JSON: {error.msg}, column {error.colno}. Correct that line, or "
            "name the file .jsonl if it has one object per line."
        ) from error
    except ValueError as error:
        raise UserError(f"{path}: could not be read: {error}. Correct it.") from error


def _from_articles(path: Path, articles: list[Any]) -> Iterator[_Read]:
    for number, article in enumerate(articles):
        place = f"{path}, data[{number}]"
        if isinstance(article, dict) and "passage" in article:
            yield from _from_row(path, place, article)
        else:
            yield from _inside(place, article, "paragraphs", partial(_from_paragraph, path, place))


def _from_paragraph(path: Path, place: str, index: int, paragraph: Any) -> Iterator[_Read]:
    place = f"{place}.paragraphs[{index}]"
    return _inside(place, paragraph, "qas", lambda _, entry: [partial(_from_entry, path, place, paragraph, entry)])


def _from_row(path: Path, place: str, row: Mapping[str, Any]) -> Iterator[_Read]:
    if "passage" in row:
        yield from _inside(place, row, "qas", lambda _, entry: [partial(_from_record, path, place, row, entry)])
    else:
        yield partial(_from_entry, path, place, row, row)


def _inside(place: str, holder: Any, key: str, read: Callable[[int, Any], Iterable[_Read]]) -> Iterator[_Read]:
    """Yield the readers from `read` for each index and item of a list; if it is no list, one that raises the error."""
    try:
        items = _member(place, holder, key, list)
    except BadRowError:
        yield lambda _: _member(place, holder, key, list)
    else:
        yield from chain.from_iterable(map(read, count(), items))


def _from_entry(path: Path, place: str, holder: Any, entry: Any, labels: Labels) -> Question:
    """A question of SQuAD; in tables of the hub, `answers` is an object of two lists."""
    context = _member(place, holder, "context", str)
    number = _id(place, entry, "id")
    place = f"{path}, question {number!r}"
    question = _member(place, entry, "question", str)
    if _are_open(entry, labels):
        return Question(number, context, question, _spans(place, context, None, start_key="answer_start"))
    answers = _member(place, entry, "answers", (list, dict))
    if isinstance(answers, dict):
        texts, starts = (_member(place, answers, key, list) for key in ("text", "answer_start"))
        if len(texts) != len(starts):
            problem = f"{counted(len(texts), 'answer')}, but {counted(len(starts), 'offset')}"
            raise BadRowError(place, problem, reason="not an offset for each answer")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    impossible = entry.get("is_impossible")
    if isinstance(impossible, bool) and impossible == bool(answers):
        problem = f"is_impossible is {json.dumps(impossible)}, but it has {counted(len(answers), 'answer')}"
        raise BadRowError(place, problem, "Correct one of the two.")
    return Question(number, context, question, _spans(place, context, answers, start_key="answer_start"))


def _from_record(path: Path, place: str, record: Any, entry: Any, labels: Labels) -> Question:
    passage = _member(place, record, "passage", dict)
    context = _member(f"{place}, passage", passage, "text", str)
    number = _id(place, entry, "id" if isinstance(entry, dict) and "id" in entry else "idx")
    place = f"{path}, question {number!r}"
    answers = None if _are_open(entry, labels) else _member(place, entry, "answers", list)
    query = _member(place, entry, "query", str)
    return Question(number, context, query, _spans(place, context, answers, start_key="start"))


def _are_open(entry: Mapping[str, Any], labels: Labels) -> bool:
    """True if a question is read without answers."""
    return labels is Labels.UNUSED or (labels is Labels.OPTIONAL and entry.get("answers") is None)


def _spans(place: str, context: str, answers: list[Any] | None, *, start_key: str) -> tuple[Answer, ...] | None:
    if not context.strip():
        raise BadRowError(place, "the context is empty", "Remove the question.")
    spans: list[Answer] = []
    for answer in answers or ():
        text = _member(place, answer, "text", str)
        start = _member(place, answer, start_key, int)
        found = context[max(start, 0) :][: len(text)]
        if start < 0 or found != text or not text.strip():
            problem = (
                f"the answer with {start_key} = {start} does not match the context: expected {_short(text)}, found"
            )
            remedy = "Offsets count characters from 0; correct it, or remove the question."
            raise BadRowError(
                place, f"{problem} {_short(found)}", remedy, reason="an answer does not match the context"
            )
        spans.append(Answer(start, text))
    return None if answers is None else tuple(spans)


def _id(place: str, entry: Any, key: str) -> str | int:
    if not isinstance(entry, dict):
        raise BadRowError(place, f"expected an object for each question, got {json_kind(entry)}", "Correct the file.")
    number = entry.get(key)
    if isinstance(number, bool) or not isinstance(number, (str, int)):
        raise BadRowError(place, f"a question has no {key!r} that is a string or an integer", "Add one.")
    return number


def _member(place: str, holder: Any, key: str, kinds: Any) -> Any:
    if not isinstance(holder, dict):
        raise BadRowError(place, f"expected an object with {key!r}, got {json_kind(holder)}", _FORMATS)
    value = holder.get(key)
    if isinstance(value, bool) or not isinstance(value, kinds):
        found = (
            f"got {json_kind(value)}" if key in holder else f"found only {', '.join(map(repr, holder)) or 'nothing'}"
        )
        wanted = " or ".join(json_kind(kind()) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise BadRowError(place, f"{key!r} has to be {wanted}, {found}", _FORMATS)
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
