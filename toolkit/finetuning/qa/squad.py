"""Readers of questions about a context: SQuAD's JSON (v1 and v2), ReCoRD's, and tables with the hub's columns.

All become `Question`s whose answers are spans of the context. ReCoRD's queries have a `@placeholder`; every mention of
the entity that belongs there is an answer.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.text import counted, json_kind
from toolkit.tables import load_json, read_table, read_text

_FORMATS = "Give SQuAD's .json, ReCoRD's .jsonl, or a .jsonl or .parquet table of id, context, question and answers."


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: `text` begins at character `start`."""

    start: int
    text: str

    @property
    def end(self) -> int:
        """The first character behind the span."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context; without answers where the context has none."""

    id: str | int
    context: str
    question: str
    answers: tuple[Answer, ...]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in one of the published formats, in its order."""
    if path.suffix.lower() == ".json":
        questions = list(_from_articles(path, _member(str(path), _parse(path), "data", list)))
    elif path.suffix.lower() in (".jsonl", ".parquet"):
        rows = enumerate(read_table(path).rows, start=1)
        questions = [question for number, row in rows for question in _from_row(path, f"{path}, row {number}", row)]
    else:
        kind = "a folder" if path.is_dir() else f"a {path.suffix} file" if path.suffix else "a file without an ending"
        raise UserError(f"{path}: expected a file of questions, got {kind}. {_FORMATS}")
    if not questions:
        raise UserError(f"{path}: no questions in this file. {_FORMATS}")
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


def _from_articles(path: Path, articles: list[Any]) -> Iterator[Question]:
    for number, article in enumerate(articles):
        place = f"{path}, data[{number}]"
        if isinstance(article, dict) and "passage" in article:
            yield from _from_record(path, place, article)
            continue
        for index, paragraph in enumerate(_member(place, article, "paragraphs", list)):
            inside = f"{place}.paragraphs[{index}]"
            context = _member(inside, paragraph, "context", str)
            for entry in _member(inside, paragraph, "qas", list):
                yield _from_entry(path, inside, entry, context)


def _from_row(path: Path, place: str, row: Mapping[str, Any]) -> Iterator[Question]:
    if "passage" in row:
        yield from _from_record(path, place, row)
    else:
        yield _from_entry(path, place, row, _member(place, row, "context", str))


def _from_entry(path: Path, place: str, entry: Any, context: str) -> Question:
    """SQuAD's question; in tables of the hub, `answers` is an object of two lists."""
    number = _id(place, entry, "id")
    place = f"{path}, question {number!r}"
    answers = _member(place, entry, "answers", (list, dict))
    if isinstance(answers, dict):
        texts, starts = (_member(place, answers, key, list) for key in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise UserError(
                f"{place}: {counted(len(texts), 'answer')}, but {counted(len(starts), 'offset')}. Correct the row."
            )
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    impossible = entry.get("is_impossible")
    if isinstance(impossible, bool) and impossible == bool(answers):
        raise UserError(
            f"{place}: is_impossible is {json.dumps(impossible)}, but it has {counted(len(answers), 'answer')}. "
            "Correct one of the two."
        )
    question = _member(place, entry, "question", str)
    return Question(number, context, question, _checked(place, context, answers, start_key="answer_start"))


def _from_record(path: Path, place: str, record: Mapping[str, Any]) -> Iterator[Question]:
    passage = _member(place, record, "passage", dict)
    context = _member(f"{place}, passage", passage, "text", str)
    for entry in _member(place, record, "qas", list):
        number = _id(place, entry, "id" if isinstance(entry, dict) and "id" in entry else "idx")
        inside = f"{path}, question {number!r}"
        answers = _member(inside, entry, "answers", list)
        yield Question(
            number,
            context,
            _member(inside, entry, "query", str),
            _checked(inside, context, answers, start_key="start"),
        )


def _checked(place: str, context: str, answers: list[Any], *, start_key: str) -> tuple[Answer, ...]:
    if not context.strip():
        raise UserError(f"{place}: the context is empty. Remove the question.")
    spans: list[Answer] = []
    for answer in answers:
        text = _member(place, answer, "text", str)
        start = _member(place, answer, start_key, int)
        found = context[max(start, 0) :][: len(text)]
        if start < 0 or found != text or not text.strip():
            raise UserError(
                f"{place}: the answer with {start_key} = {start} does not match the context: expected {_short(text)}, "
                f"found {_short(found)}. Offsets count characters from 0; correct it, or remove the question."
            )
        spans.append(Answer(start, text))
    return tuple(spans)


def _id(place: str, entry: Any, key: str) -> str | int:
    if not isinstance(entry, dict):
        raise UserError(f"{place}: expected an object for each question, got {json_kind(entry)}. Correct the file.")
    number = entry.get(key)
    if isinstance(number, bool) or not isinstance(number, (str, int)):
        raise UserError(f"{place}: a question has no {key!r} that is a string or an integer. Add one.")
    return number


def _member(place: str, holder: Any, key: str, kinds: Any) -> Any:
    if not isinstance(holder, dict):
        raise UserError(f"{place}: expected an object with {key!r}, got {json_kind(holder)}. {_FORMATS}")
    value = holder.get(key)
    if isinstance(value, bool) or not isinstance(value, kinds):
        found = (
            f"got {json_kind(value)}" if key in holder else f"found only {', '.join(map(repr, holder)) or 'nothing'}"
        )
        wanted = " or ".join(json_kind(kind()) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise UserError(f"{place}: {key!r} has to be {wanted}, {found}. {_FORMATS}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
