r"""Documents, queries, and judgements of which documents answer which queries, from BEIR folders.

A folder has `corpus.jsonl`, `queries.jsonl` (both plain or `.gz`) and `qrels/{train,dev,test}.tsv`. JSON lines end at
`\n` only: other Unicode line breaks, such as U+0085 and U+2028, may occur inside a string.
"""

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from toolkit.core.errors import UserError
from toolkit.core.text import counted, json_kind
from toolkit.finetuning.bad_rows import BadRowError, BadRows
from toolkit.finetuning.settings import Split
from toolkit.tables import parse_object, read_text

_CORPUS, _QUERIES, _QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
SPLITS = {Split.TRAIN: "train", Split.VALIDATION: "dev", Split.TEST: "test"}
"""Names of judgement files, without the suffix."""
_COLUMNS = "query id, document id and grade, separated by tabs"
_CORRECT = "Correct that line."
Content = TypeVar("Content")
JsonRow = dict[str, object]
Grades = Mapping[str, Mapping[str, int]]
"""Relevance grade by query and document id: 1 or more is relevant, 0 or less is not."""


@dataclass(frozen=True)
class Document:
    """Text to search, and its title (empty if none)."""

    title: str
    text: str

    def joined(self, separator: str) -> str:
        """Title and text in one string."""
        return separator.join(part for part in (self.title, self.text) if part)


@dataclass(frozen=True)
class Collection:
    """Documents and queries by id, in the order of their files."""

    documents_file: Path
    queries_file: Path
    documents: Mapping[str, Document]
    queries: Mapping[str, str]

    def by_set(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """Ids of documents or queries by name of their set; sets are searched separately. Here there is only one."""
        return {"": list(ids)}

    def is_query_itself(self, query: str, document: str) -> bool:
        """True if a document is the query itself: same id and text, with or without the title."""
        if query != document:
            return False
        found = self.documents[document]
        return self.queries[query] in (found.text, found.joined(" "))


class Judgement(NamedTuple):
    """Relevance of a document to a query, with its place in the file."""

    query: str
    document: str
    grade: int
    place: str


@dataclass(frozen=True)
class Judgements:
    """Judgements of a file, queries and documents in order of first appearance."""

    path: Path
    collection: Collection
    grades: Grades

    @property
    def documents(self) -> list[str]:
        """Ids of the judged documents that exist, in the order of the collection."""
        judged = {document for grades in self.grades.values() for document in grades}
        return [document for document in self.collection.documents if document in judged]

    def only(self, queries: Iterable[str]) -> "Judgements":
        """Judgements of some queries, in the order of the file."""
        chosen = frozenset(queries)
        grades = {query: grades for query, grades in self.grades.items() if query in chosen}
        return Judgements(self.path, self.collection, grades)


def is_beir(path: Path) -> bool:
    """True if a path is a BEIR folder, or a file in the `qrels/` of one."""
    return _find(path if path.is_dir() else collection_folder(path), _CORPUS) is not None


def collection_folder(judgements: Path) -> Path:
    """The folder above the `qrels/` of a judgements file; either may be the current folder, left out of the path."""
    return Path(os.path.abspath(judgements)).parent.parent


def judgements_file(path: Path, *, split: str) -> Path:
    """Judgements file for a path: the path itself, or the split's file in a BEIR folder."""
    if not path.is_dir():
        return path
    file = path / _QRELS / f"{split}.tsv"
    if not file.is_file():
        found = sorted(other.name for other in (path / _QRELS).glob("*.tsv"))
        raise UserError(
            f"{file}: no such file; {path / _QRELS} holds {', '.join(found) or 'no .tsv file'}. Name the file to use, "
            "or another folder."
        )
    return file


def collection_files(judgements: Path) -> list[Path]:
    """Existing files of documents and queries above the `qrels/` folder of a judgements file."""
    found = (_find(collection_folder(judgements), name) for name in (_CORPUS, _QUERIES))
    return [file for file in found if file is not None]


def read_collection(judgements: Path, bad: BadRows) -> Collection:
    """Read the collection above the `qrels/` folder of a judgements file."""
    root = collection_folder(judgements)
    for name in (_CORPUS, _QUERIES):
        if _find(root, name) is None:
            raise UserError(
                f"{root / name}: no such file, nor {name}.gz. A BEIR folder needs {_CORPUS} and {_QUERIES}."
            )
    corpus, queries = collection_files(judgements)
    return Collection(corpus, queries, _read_by_id(corpus, _document, bad), _read_by_id(queries, _query, bad))


def read_judgements(path: Path, collection: Collection, bad: BadRows) -> Judgements:
    """Read the judgements of one file, with or without a header."""
    text = read_text(path, what_to_give="Give a BEIR folder or one of its qrels.")
    lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    read = bad.each(path, lines, lambda line: _judgement(path, *line))
    return to_judgements(path, (one for one in read if one is not None), collection, bad)


def to_judgements(path: Path, judged: Iterable[Judgement], collection: Collection, bad: BadRows) -> Judgements:
    """Judgements on a collection, as trec_eval reads them.

    An unknown query is left out; an unknown document stays in the ideal ranking. Both are reported.
    """
    grades: dict[str, dict[str, int]] = {}

    def add(one: Judgement) -> None:
        if one.query not in collection.queries:
            bad.note(path, f"left out: the query is not in {collection.queries_file}", one.place)
            return
        of_query = grades.setdefault(one.query, {})
        if of_query.get(one.document, one.grade) != one.grade:
            found = f"document {one.document!r} has grade {one.grade} for query {one.query!r}, but grade "
            problem, remedy = f"{found}{of_query[one.document]} further up", "Remove one of the two lines."
            raise BadRowError(one.place, problem, remedy, reason="the document has another grade further up")
        if one.document not in collection.documents:
            reason = f"kept in the ideal ranking: the document is not in {collection.documents_file}"
            bad.note(path, reason, one.place)
        of_query[one.document] = one.grade

    bad.each(path, judged, add)
    if not grades:
        raise UserError(
            f"{path}: no judgements in this file of queries in {collection.queries_file}. Give one with a line for "
            "each judged document of a query."
        )
    if not any(grade > 0 for of_query in grades.values() for grade in of_query.values()):
        raise UserError(f"{path}: no document is judged relevant (a grade of 1 or more). Give another file.")
    return Judgements(path, collection, grades)


def _find(root: Path, name: str) -> Path | None:
    return next((file for file in (root / name, root / f"{name}.gz") if file.is_file()), None)


def read_json_lines(path: Path) -> Iterator[tuple[str, JsonRow]]:
    """Yield the objects of a JSON lines file, plain or `.gz`, with their places."""
    for number, line in enumerate(_read_bytes(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            yield place, parse_object(place, line)


def _read_bytes(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"could not read {path}: {error}. Download it again, or give another file.") from error


def _read_by_id(path: Path, read: Callable[[str, JsonRow], Content], bad: BadRows) -> dict[str, Content]:
    contents: dict[str, Content] = {}

    def add(place_and_row: tuple[str, JsonRow]) -> None:
        place, row = place_and_row
        identity = row.get("_id")
        if isinstance(identity, int) and not isinstance(identity, bool):
            identity = str(identity)
        if not isinstance(identity, str) or not identity:
            found = json_kind(identity) if "_id" in row else "an object without it"
            raise BadRowError(place, f"'_id' must be a string that is not empty, found {found}", _CORRECT)
        if identity in contents:
            problem = f"'_id' {identity!r} occurs a second time in this file"
            raise BadRowError(place, problem, "Remove one of the two.", reason="'_id' occurs a second time")
        contents[identity] = read(place, row)

    bad.each(path, read_json_lines(path), add)
    return contents


def _text(place: str, row: JsonRow, key: str) -> str:
    value = row.get(key)
    if value is None and key == "title":
        return ""
    if not isinstance(value, str):
        found = json_kind(value) if key in row else "an object without it"
        raise BadRowError(place, f"{key!r} must be a string, found {found}", _CORRECT)
    return value.strip()


def _document(place: str, row: JsonRow) -> Document:
    return Document(_text(place, row, "title"), _text(place, row, "text"))


def _query(place: str, row: JsonRow) -> str:
    text = _text(place, row, "text")
    if not text:
        raise BadRowError(place, "the query has no text", "Remove it and its judgements, or add its text.")
    return text


def _judgement(path: Path, number: int, line: str) -> Judgement | None:
    """The judgement of a line; None for a header."""
    place, cells = f"{path}, line {number}", line.rstrip("\r").split("\t")
    if len(cells) != 3:
        raise BadRowError(place, f"expected {_COLUMNS}, got {counted(len(cells), 'field')}", _CORRECT)
    query, document, grade = cells
    if not grade.strip().removeprefix("-").isdecimal():
        if number == 1:
            return None
        raise BadRowError(place, f"the grade must be an integer, found {grade!r}", _CORRECT)
    return Judgement(query, document, int(grade), place)
