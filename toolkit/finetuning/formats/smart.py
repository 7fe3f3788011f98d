r"""Reader of test collections in SMART's format, such as Cranfield and CISI.

A folder holds documents (`cran.all.1400`, `CISI.ALL`), queries (`cran.qry`, `CISI.QRY`) and judgements (`cranqrel`,
`CISI.REL`). An entry begins with `.I NUMBER`, its fields with a letter: `.T` title, `.W` text.

Judgements number queries by position in their file, which is not always what `.I` says. Their columns are one of

- query, document, code (Cranfield): 1 is a complete answer, 4 of minimum interest, 5 of none; the grade is 5 - code.
  The code -1, once for each query, names the paper that the query came from: such a row is no judgement.
- query, 0, document, grade (TREC).
- query and document, and whatever else (CISI): each row is a relevant document.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.finetuning.formats.data_files import read_text
from toolkit.finetuning.formats.judgements import Collection, Document, Judgement, Judgements, collect

_DOCUMENTS, _QUERIES = re.compile(r"\.all(\.\d+)?$", re.I), re.compile(r"\.qry$", re.I)
_JUDGEMENTS = re.compile(r"(qrels?|\.rel)$", re.I)
_SOURCE_PAPER, _LAST_CODE = -1, 5


@dataclass
class _Entry:
    line: int
    number: str
    fields: dict[str, list[str]] = field(default_factory=dict)

    def text(self, letter: str) -> str:
        return " ".join(" ".join(self.fields.get(letter, ())).split())


def is_smart(path: Path) -> bool:
    """Whether a path is a folder in SMART's format, or a file in one."""
    folder = path if path.is_dir() else path.parent
    return bool(_matching(folder, _DOCUMENTS) and _matching(folder, _QUERIES))


def judgements_file(path: Path) -> Path:
    """The judgements that a path stands for: a file itself, or the only one of a folder.

    Raises:
        UserError: the folder has none, or several.
    """
    return _only(path, _JUDGEMENTS, "judgements (such as cranqrel)") if path.is_dir() else path


def read_collection(judgements: Path) -> Collection:
    """The collection in the folder of a judgements file. Documents have the ids of `.I`, queries their positions.

    A title that the text repeats at its beginning, as in Cranfield, is kept once.

    Raises:
        UserError: a file is broken; names the line.
    """
    folder = judgements.parent
    documents_file = _only(folder, _DOCUMENTS, "documents (such as cran.all.1400)")
    queries_file = _only(folder, _QUERIES, "queries (such as cran.qry)")
    documents: dict[str, Document] = {}
    for entry in _read_entries(documents_file):
        title, text = entry.text("T"), entry.text("W")
        if entry.number in documents:
            raise UserError(f"{documents_file}, line {entry.line}: a second document {entry.number}. Remove one.")
        documents[entry.number] = Document(title, text.removeprefix(title).strip())
    queries: dict[str, str] = {}
    for position, entry in enumerate(_read_entries(queries_file), start=1):
        if not entry.text("W"):
            raise UserError(f"{queries_file}, line {entry.line}: query {entry.number} has no text (.W). Add it.")
        queries[str(position)] = entry.text("W")
    return Collection(documents_file, queries_file, documents, queries)


def read_judgements(path: Path, collection: Collection) -> Judgements:
    """Judgements of one file.

    Raises:
        UserError: the file is broken or does not fit the collection; names the line.
    """
    lines = [(number, line.split()) for number, line in enumerate(_lines(path), start=1)]
    rows = [(number, cells) for number, cells in lines if cells]
    widths = {len(cells) for _, cells in rows}
    if len(widths) > 1 or not widths <= {2, 3, 4}:
        number, cells = next(
            (number, cells) for number, cells in rows if len(cells) != len(rows[0][1]) or not 2 <= len(cells) <= 4
        )
        raise UserError(
            f"{path}, line {number}: expected the same 2, 3 or 4 columns (query, document and code) in every line, got "
            f"{len(cells)}. Correct that line."
        )
    if widths == {3}:
        judged = [_coded(f"{path}, line {number}", number, cells) for number, cells in rows]
        return collect(path, collection, [row for row in judged if row is not None])
    if widths == {4} and all(cells[1] == "0" for _, cells in rows):
        trec = [(number, [cells[0], cells[2]], _integer(f"{path}, line {number}", cells[3])) for number, cells in rows]
    else:
        trec = [(number, cells, 1) for number, cells in rows]
    return collect(path, collection, [Judgement(number, cells[0], cells[1], grade) for number, cells, grade in trec])


def _coded(place: str, number: int, cells: list[str]) -> Judgement | None:
    code = _integer(place, cells[2])
    if code == _SOURCE_PAPER:
        return None
    if not 1 <= code <= _LAST_CODE:
        raise UserError(f"{place}: expected a code of relevance from 1 (best) to 5, or -1, got {code}. Correct it.")
    return Judgement(number, cells[0], cells[1], _LAST_CODE - code)


def _integer(place: str, cell: str) -> int:
    try:
        return int(cell)
    except ValueError as error:
        raise UserError(f"{place}: expected an integer in the last column, got {cell!r}. Correct it.") from error


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and pattern.search(path.name))


def _only(folder: Path, pattern: re.Pattern[str], what: str) -> Path:
    found = _matching(folder, pattern)
    if len(found) != 1:
        named = ", ".join(path.name for path in found) or "none"
        raise UserError(
            f"{folder}: expected one file of {what}, found {named}. Name the file itself, or move others away."
        )
    return found[0]


def _read_entries(path: Path) -> list[_Entry]:
    entries: list[_Entry] = []
    letter = ""
    for number, line in enumerate(_lines(path), start=1):
        if line.startswith(".I "):
            entries.append(_Entry(number, line.removeprefix(".I ").strip()))
            letter = ""
        elif entries and re.fullmatch(r"\.[A-Z]\s*", line):
            letter = line[1]
        elif entries and letter:
            entries[-1].fields.setdefault(letter, []).append(line)
        elif line.strip():
            raise UserError(f"{path}, line {number}: expected .I and a number, got {line[:40]!r}. Correct that line.")
    if not entries:
        raise UserError(f"{path}: no entries (.I) in this file. Download it again.")
    return entries


def _lines(path: Path) -> list[str]:
    # Files of that time are ASCII; copies of them have stray bytes of Latin-1.
    text = read_text(path, what_to_give="Give the collection's folder.", encoding="latin-1")
    return text.replace("\r\n", "\n").split("\n")
