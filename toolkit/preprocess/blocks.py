"""Rows gathered into blocks of a few megabytes of text: enough for the tokenizer's threads, little enough to hold."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from toolkit.preprocess.readers import Row

__all__ = ["Block", "gather"]

# The tokenizer works with some 100 bytes a character, so a block costs it about 200 MB.
_BLOCK_CHARACTERS = 2 << 20
_MOST_ROWS = 8192


@dataclass
class Block:
    """Consecutive rows of one source.

    Attributes:
        texts: the texts of the rows that have one.
        without_text: the other rows, each with the number of texts before it.
        first_row: rows of the source before the block.
        end: how many bytes of the source are read by then.
    """

    first_row: int
    texts: list[str] = field(default_factory=list)
    without_text: list[tuple[int, Row]] = field(default_factory=list)
    end: int = 0

    @property
    def num_rows(self) -> int:
        """All rows of the block."""
        return len(self.texts) + len(self.without_text)

    def skipped(self, start: int, stop: int) -> list[tuple[int, Row]]:
        """The rows without a text that stand before the texts start..stop - 1, each with its row number from 1."""
        return [
            (self.first_row + position + earlier + 1, row)
            for earlier, (position, row) in enumerate(self.without_text)
            if start <= position < stop
        ]

    def row_number(self, text: int) -> int:
        """Row number, from 1, of the text with this index."""
        return self.first_row + text + len(self.skipped(0, text + 1)) + 1


def gather(rows: Iterable[Row], *, first_row: int) -> Iterator[Block]:
    """Cut rows into blocks, in order. A text longer than a block is a block of its own.

    Args:
        rows: rows of a source, from number `first_row` (counted from 0) on.
        first_row: how many rows of the source come before.
    """
    block, characters = Block(first_row), 0
    for row in rows:
        # A long text is not added to a block that has some already: their memory would add up.
        if block.texts and characters + len(row.text) > _BLOCK_CHARACTERS:
            yield block
            block, characters = Block(block.first_row + block.num_rows), 0
        if row.reason is None:
            block.texts.append(row.text)
            characters += len(row.text)
        else:
            block.without_text.append((len(block.texts), row))
        block.end = row.end
        if block.num_rows >= _MOST_ROWS:
            yield block
            block, characters = Block(block.first_row + block.num_rows), 0
    if block.num_rows:
        yield block
