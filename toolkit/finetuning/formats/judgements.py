"""Documents, queries, and the judgements that say which documents answer which queries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.errors import UserError

Grades = Mapping[str, Mapping[str, int]]
"""By query and document id, how relevant the document is: 1 and more is relevant, 0 and less is not."""


@dataclass(frozen=True)
class Document:
    """What is searched: a text, and its title or an empty string."""

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

    def is_query_itself(self, query: str, document: str) -> bool:
        """Whether a query is a document of its own collection: id and text are equal, with the title or without."""
        if query != document:
            return False
        found = self.documents[document]
        return self.queries[query] in (found.text, found.joined(" "))


@dataclass(frozen=True)
class Judgement:
    """One line of a judgements file."""

    line: int
    query: str
    document: str
    grade: int


@dataclass(frozen=True)
class Judgements:
    """Judgements of a file, queries and documents in order of first appearance."""

    path: Path
    collection: Collection
    grades: Grades

    @property
    def documents(self) -> list[str]:
        """Ids of the judged documents, in the order of the collection."""
        judged = {document for grades in self.grades.values() for document in grades}
        return [document for document in self.collection.documents if document in judged]

    def only(self, queries: Iterable[str]) -> "Judgements":
        """Those of some queries, in the order of the file."""
        chosen = frozenset(queries)
        grades = {query: grades for query, grades in self.grades.items() if query in chosen}
        return Judgements(self.path, self.collection, grades)


def collect(path: Path, collection: Collection, rows: Iterable[Judgement]) -> Judgements:
    """Check the lines of a judgements file against their collection.

    Raises:
        UserError: an unknown document or query, two grades for one pair, or nothing relevant; names the line.
    """
    grades: dict[str, dict[str, int]] = {}
    for row in rows:
        _check_known(path, collection, row)
        of_query = grades.setdefault(row.query, {})
        if of_query.setdefault(row.document, row.grade) != row.grade:
            raise UserError(
                f"{path}, line {row.line}: document {row.document!r} has grade {row.grade} for query {row.query!r}, "
                f"but grade {of_query[row.document]} further up. Remove one of the two lines."
            )
    if not grades:
        raise UserError(
            f"{path}: no judgements in this file. Give one with a line for each judged document of a query."
        )
    if not any(grade > 0 for of_query in grades.values() for grade in of_query.values()):
        raise UserError(f"{path}: no document is judged relevant (a grade of 1 or more). Give another file.")
    return Judgements(path, collection, grades)


def _check_known(path: Path, collection: Collection, row: Judgement) -> None:
    place = f"{path}, line {row.line}"
    if row.query not in collection.queries:
        raise UserError(
            f"{place}: query {row.query!r} is not in {collection.queries_file}. Remove the line, or add the query."
        )
    if row.document not in collection.documents:
        raise UserError(
            f"{place}: document {row.document!r} is not in {collection.documents_file}. Remove the line, or add the "
            "document."
        )
