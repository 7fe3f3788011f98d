r"""Reader of CoNLL columns: a token and its tag on each line, a blank line between sentences.

The columns are separated by tabs if the file's first row has one, else by blanks. The token is in the first and the tag
in the last column. Where the first column numbers the tokens of every sentence from 1, as in Universal NER's `.iob2`
files, the token is in the second column, and the tag in the third, if that holds tags, else in the last.

`-DOCSTART-` lines are left out, and so are comments: lines that begin with `#`, unless they have as many columns as the
others and a tag where those have it. Lines end at `\n` (or `\r\n`) only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.tc.tag_schemes import TagScheme, detect_scheme, is_tag
from toolkit.tables import read_text

_WHAT_TO_GIVE = "Give CoNLL columns: a token and its tag on each line, and a blank line between sentences."
_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT_START = "-DOCSTART-"
Line = tuple[int, str]
"""Number and text."""


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Tokens with their tags, and the number of each token's line."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True)
class TaggedFile:
    """The sentences of a file, with tags as they stand there."""

    path: Path
    scheme: TagScheme
    sentences: list[TaggedSentence]


@dataclass(frozen=True)
class _Layout:
    has_tabs: bool
    num_columns: int
    token: int = 0
    tag: int = -1

    def cells(self, line: str) -> list[str]:
        line = line.strip(" \t")
        return [cell.strip(" ") for cell in line.split("\t")] if self.has_tabs else _BLANKS.split(line)


def read_conll(path: Path) -> TaggedFile:
    """The sentences of a file, and the scheme of its tags."""
    blocks = list(_blocks(read_text(path, what_to_give=_WHAT_TO_GIVE)))
    layout = _layout(path, blocks)
    sentences = [_sentence(path, rows, layout) for block in blocks if (rows := _rows(block, layout))]
    if not sentences:
        raise UserError(f"{path}: no sentences in this file. {_WHAT_TO_GIVE}")
    try:
        scheme = detect_scheme(sentence.tags for sentence in sentences)
    except ValueError as error:
        raise UserError(f"{path}: {error}. Write all tags in one scheme.") from error
    return TaggedFile(path, scheme, sentences)


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


def _layout(path: Path, blocks: list[list[Line]]) -> _Layout:
    plain = [[line for line in block if not line[1].startswith("#")] for block in blocks]
    first = next((line for block in plain for line in block), None)
    if first is None:
        return _Layout(has_tabs=False, num_columns=2)
    has_tabs = "\t" in first[1].strip(" \t")
    num_columns = len(_Layout(has_tabs, 0).cells(first[1]))
    if num_columns < 2:
        raise UserError(f"{path}, line {first[0]}: expected a token and its tag, found one column. {_WHAT_TO_GIVE}")
    rows = [[_Layout(has_tabs, num_columns).cells(line) for _, line in block] for block in plain]
    if num_columns > 2 and all(row[0] == str(place) for block in rows for place, row in enumerate(block, start=1)):
        third_holds_tags = all(len(row) > 2 and is_tag(row[2]) for block in rows for row in block)
        return _Layout(has_tabs, num_columns, token=1, tag=2 if third_holds_tags else -1)
    return _Layout(has_tabs, num_columns)


def _rows(block: list[Line], layout: _Layout) -> list[tuple[int, list[str]]]:
    """Lines of a block without its comments."""
    rows = [(number, line, layout.cells(line)) for number, line in block]
    return [
        (number, cells)
        for number, line, cells in rows
        if not line.startswith("#") or (len(cells) == layout.num_columns and is_tag(cells[layout.tag]))
    ]


def _sentence(path: Path, rows: list[tuple[int, list[str]]], layout: _Layout) -> TaggedSentence:
    for number, cells in rows:
        if len(cells) != layout.num_columns:
            raise UserError(
                f"{path}, line {number}: {counted(len(cells), 'column')}, but the first row has {layout.num_columns}. "
                "Correct that line."
            )
        if not cells[layout.token]:
            raise UserError(f"{path}, line {number}: the token is empty. Correct or remove that line.")
        if not is_tag(cells[layout.tag]):
            column = "last" if layout.tag == -1 else "third"
            raise UserError(
                f"{path}, line {number}: {cells[layout.tag]!r} in the {column} column is not a tag: expected O, or B- "
                "or I- (also E- S-, or L- U-) and a type, such as B-PER. Correct that line, or give another file."
            )
    return TaggedSentence(
        tokens=tuple(cells[layout.token] for _, cells in rows),
        tags=tuple(cells[layout.tag] for _, cells in rows),
        lines=tuple(number for number, _ in rows),
    )
