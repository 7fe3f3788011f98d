r"""Readers of tagged words: tables with a list of tokens and one of tags in each row, and CoNLL columns.

CoNLL files have a token and its tag on each line, and a blank line between sentences. Columns are separated by tabs if
the file's first row has one, else by blanks. The token is in the first and the tag in the last column. If the first
column numbers the tokens of every sentence from 1, as in Universal NER's `.iob2` files, the token is in the second
column, and the tag in the third if that has tags, else in the last.

`-DOCSTART-` lines are left out, as are comments: lines that begin with `#`, unless they have as many columns as the
others and a tag in the tag column. Lines end at `\n` (or `\r\n`) only.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.bad_rows import BadRowError, BadRows, Labels
from toolkit.finetuning.named.published_forms import DataFile, table_of
from toolkit.finetuning.tc.tag_schemes import OUTSIDE, TagScheme, detect_scheme, has_letter, is_tag
from toolkit.tables import TableFile, TableRow, parquet_class_names, read_text

_WHAT_TO_GIVE = (
    "Give CoNLL columns: a token and its tag on each line, and a blank line between sentences; or a .jsonl or .parquet "
    "table with tokens and ner_tags."
)
_TABLES, _TOKENS, _TAGS = (".jsonl", ".json", ".parquet"), ("tokens", "words"), ("ner_tags", "tags")
_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT_START = "-DOCSTART-"
Line = tuple[int, str]
"""Line number and text."""


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Tokens, their tags (None if untagged), and the place of each token: its line (`line 3`) or row."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None
    places: tuple[str, ...]


@dataclass(frozen=True)
class TaggedFile:
    """Sentences of a file with their tags unchanged; `scheme` is None if the tags mark no entities."""

    path: Path
    scheme: TagScheme | None
    sentences: list[TaggedSentence]


@dataclass(frozen=True)
class _Layout:
    has_tabs: bool
    num_columns: int
    token: int = 0
    tag: int = -1
    is_tagged: bool = True
    known: frozenset[str] = frozenset()

    def has_tag(self, cells: list[str]) -> bool:
        """True if the tag column has a tag, or a value that it has in other lines, or if there are only tokens."""
        return self.num_columns == 1 or is_tag(cells[self.tag]) or cells[self.tag] in self.known

    def cells(self, line: str) -> list[str]:
        line = line.strip(" \t")
        return [cell.strip(" ") for cell in line.split("\t")] if self.has_tabs else _BLANKS.split(line)


def read_tagged(
    file: DataFile,
    bad: BadRows,
    *,
    label_type: str = "entity",
    label_column: str | None = None,
    labels: Labels = Labels.NEEDED,
) -> TaggedFile:
    """Read the sentences of a file, and the scheme of its tags.

    `label_column` is the column of the tags: its number, from 1, in CoNLL files; its name in tables. If tags are
    unused, only their scheme is needed, and the file may lack the column.
    """
    if isinstance(file, Path) and file.suffix.lower() not in _TABLES:
        path, sentences = file, _from_columns(file, bad, label_column, labels)
    else:
        table = table_of(file)
        path, sentences = table.path, _from_table(table, file, bad, label_column, label_type, labels)
    if not sentences:
        raise UserError(f"{path}: no sentences in this file. {_WHAT_TO_GIVE}")
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    have_letters = any(map(has_letter, tags))
    are_entities = all(map(is_tag, tags)) if have_letters else OUTSIDE in tags
    if label_type == "class" or not tags or (labels is Labels.UNUSED and not are_entities):
        return TaggedFile(path, None, sentences)
    if not have_letters and not are_entities:
        raise UserError(
            f"{path}: no tag is {OUTSIDE}, or B- or I- and a type; found: {', '.join(sorted(tags)[:5])}. If these are "
            "classes of words, such as parts of speech, add --label-type class; else choose the column of tags with "
            "--label-column."
        )
    if have_letters:
        sentences = bad.each(path, sentences, lambda sentence: _checked(path, sentence))
    try:
        scheme = detect_scheme(sentence.tags for sentence in sentences if sentence.tags)
    except ValueError as error:
        if labels is Labels.UNUSED:
            return TaggedFile(path, None, sentences)
        raise UserError(f"{path}: {error}. Write all tags in one scheme.") from error
    return TaggedFile(path, scheme, sentences)


def _checked(path: Path, sentence: TaggedSentence) -> TaggedSentence:
    for tag, place in zip(sentence.tags or (), sentence.places, strict=False):
        if not is_tag(tag):
            expected = "expected O, or B- or I- (also E- S-, or L- U-) and a type, such as B-PER"
            remedy = "Correct it, choose another column with --label-column, or give another file."
            raise BadRowError(f"{path}, {place}", f"{tag!r} is not a tag: {expected}", remedy)
    return sentence


def _from_columns(path: Path, bad: BadRows, label_column: str | None, labels: Labels) -> list[TaggedSentence]:
    blocks = list(_blocks(read_text(path, what_to_give=_WHAT_TO_GIVE)))
    layout = _layout(path, blocks, label_column, labels)
    rows = (rows for block in blocks if (rows := _rows(block, layout)))
    return bad.each(path, rows, lambda rows: _sentence(path, rows, layout))


def _from_table(
    table: TableFile, file: DataFile, bad: BadRows, label_column: str | None, label_type: str, labels: Labels
) -> list[TaggedSentence]:
    token_column = next((name for name in _TOKENS if name in table.columns), None)
    if token_column is None:
        found = ", ".join(map(repr, table.columns))
        raise UserError(f"{table.path}: no column {' or '.join(map(repr, _TOKENS))}; found: {found}. {_WHAT_TO_GIVE}")
    column = label_column or next((name for name in _TAGS if name in table.columns), _TAGS[0])
    names = parquet_class_names(file, column) if isinstance(file, Path) and file.suffix == ".parquet" else None

    def read(numbered: tuple[int, TableRow]) -> TaggedSentence:
        number, row = numbered
        place, tokens, tags = f"{table.path}, row {number}", row.get(token_column), row.get(column)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise BadRowError(place, f"{token_column!r} must be a list of strings")
        places = (f"row {number}",) * len(tokens)
        if not isinstance(tags, list) or all(tag in (None, -1) for tag in tags):
            return TaggedSentence(tuple(tokens), None if tokens else (), places)
        try:
            if len(tags) != len(tokens):
                problem = f"{counted(len(tokens), 'token')}, but {counted(len(tags), 'tag')}"
                raise BadRowError(place, problem, reason="not a tag for each token")
            written = tuple(_tag(table.path, column, tag, names, label_type) for tag in tags)
        except UserError:
            if labels is not Labels.UNUSED:
                raise
            return TaggedSentence(tuple(tokens), None, places)
        return TaggedSentence(tuple(tokens), written, places)

    return bad.each(table.path, enumerate(table.rows, start=1), read)


def _tag(path: Path, column: str, tag: object, names: Sequence[str] | None, label_type: str) -> str:
    if isinstance(tag, int) and names is not None and 0 <= tag < len(names):
        return names[tag]
    if isinstance(tag, int) and label_type != "class":
        raise UserError(
            f"{path}: {column!r} has numbers, such as {tag}, and no names for them. Write the names of the tags, or a "
            "Parquet file with them: `to_parquet` of the library `datasets` keeps them."
        )
    return str(tag)


def _blocks(text: str) -> Iterator[list[Line]]:
    block: list[Line] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.strip(" \t") or _BLANKS.split(line, maxsplit=1)[0] == _DOCUMENT_START:
            yield block
            block = []
        else:
            block.append((number, line))
    yield block


def _layout(path: Path, blocks: list[list[Line]], label_column: str | None, labels: Labels) -> _Layout:
    plain = [[line for line in block if not line[1].startswith("#")] for block in blocks]
    first = next((line for block in plain for line in block), None)
    if first is None:
        return _Layout(has_tabs=False, num_columns=2)
    has_tabs = "\t" in first[1].strip(" \t")
    layout = _Layout(has_tabs, len(_Layout(has_tabs, 0).cells(first[1])))
    rows = [[layout.cells(line) for _, line in block] for block in plain]
    if layout.num_columns > 2 and all(row[0] == str(place) for block in rows for place, row in enumerate(block, 1)):
        third_holds_tags = all(len(row) > 2 and is_tag(row[2]) for block in rows for row in block)
        layout = replace(layout, token=1, tag=2 if third_holds_tags else -1)
    if label_column is not None and layout.num_columns > 1:
        has_column = label_column.isdecimal() and 1 <= int(label_column) <= layout.num_columns
        if not has_column and labels is not Labels.UNUSED:
            raise UserError(
                f"{path}: the label column {label_column!r} is not a number from 1 to {layout.num_columns}. Give the "
                "number of the column of the tags (--label-column)."
            )
        layout = replace(layout, tag=int(label_column) - 1) if has_column else replace(layout, is_tagged=False)
    known = frozenset(row[layout.tag] for block in rows for row in block if len(row) == layout.num_columns)
    return replace(layout, known=known)


def _rows(block: list[Line], layout: _Layout) -> list[tuple[int, list[str]]]:
    """Lines of a block, without comments."""
    rows = [(number, line, layout.cells(line)) for number, line in block]
    return [
        (number, cells)
        for number, line, cells in rows
        if not line.startswith("#") or (len(cells) == layout.num_columns and layout.has_tag(cells))
    ]


def _sentence(path: Path, rows: list[tuple[int, list[str]]], layout: _Layout) -> TaggedSentence:
    for number, cells in rows:
        place = f"{path}, line {number}"
        if len(cells) != layout.num_columns:
            problem = f"{counted(len(cells), 'column')}, but the first row has {layout.num_columns}"
            raise BadRowError(place, problem, "Correct that line.")
        if not cells[layout.token]:
            raise BadRowError(place, "the token is empty", "Correct or remove that line.")
    return TaggedSentence(
        tokens=tuple(cells[layout.token] for _, cells in rows),
        tags=tuple(cells[layout.tag] for _, cells in rows) if layout.num_columns > 1 and layout.is_tagged else None,
        places=tuple(f"line {number}" for number, _ in rows),
    )
