"""The footer of a Parquet file: what pyarrow makes of it, and where the column chunks are.

Asking pyarrow (26) for a column chunk of a damaged footer ends the process: the exception of its C++ side is not
passed on. So places and sizes are read here, from the same bytes, once pyarrow has accepted them. They are Thrift
structures in the compact protocol; the numbers of their fields are those of parquet.thrift in apache/parquet-format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16

_ROW_GROUPS, _COLUMNS, _NUM_ROWS, _COLUMN_METADATA = 4, 1, 3, 3
_UNPACKED_BYTES, _PACKED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 6, 7, 9, 11

_Structure = dict[int, Any]


class SeekableFile(Protocol):
    """What is needed of a file."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""

    def read(self, size: int, /) -> bytes:
        """The next so many bytes."""


@dataclass(frozen=True)
class ColumnChunk:
    """One column of one row group.

    Attributes:
        start: its first byte in the file.
        stop: the byte behind its last.
        unpacked_bytes: its size once it is decompressed.
    """

    start: int
    stop: int
    unpacked_bytes: int


@dataclass(frozen=True)
class Footer:
    """A footer, parsed.

    Attributes:
        metadata: as pyarrow has it.
        group_rows: rows of each row group.
        chunks: the column chunks of each row group, in the order of the schema's leaves.
    """

    metadata: "pq.FileMetaData"
    group_rows: Sequence[int]
    chunks: Sequence[Sequence[ColumnChunk]]


def read_footer(file: SeekableFile, num_bytes: int) -> Footer:
    """Read and parse the footer of a Parquet file of so many bytes.

    Raises:
        ValueError: it is none, or is damaged.
        pyarrow.ArrowException: as above.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.seek(max(0, num_bytes - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("it does not end as one (with PAR1); it may be cut off")
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > num_bytes:
        raise ValueError(f"its footer of {length:,} bytes does not fit in the file; it may be cut off")
    if length + 8 > len(tail):
        file.seek(num_bytes - length - 8)
        tail = file.read(length + 8)
    footer = tail[-length - 8 : -8]
    metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer + tail[-8:]))
    try:
        return Footer(metadata, *_groups(_Compact(footer).structure()))
    except (AttributeError, TypeError) as error:  # pyarrow passes over a field of a kind that it does not expect
        raise ValueError("its footer is damaged") from error


def _groups(metadata: _Structure) -> tuple[list[int], list[list[ColumnChunk]]]:
    groups = metadata.get(_ROW_GROUPS) or []
    rows = [_integer(group, _NUM_ROWS) for group in groups]
    return rows, [[_chunk(column.get(_COLUMN_METADATA)) for column in group.get(_COLUMNS) or []] for group in groups]


def _chunk(column: _Structure | None) -> ColumnChunk:
    if column is None:
        raise ValueError("its footer does not describe every column")
    start = _integer(column, _DATA_OFFSET)
    dictionary = _integer(column, _DICTIONARY_OFFSET, default=0)
    # Some writers leave 0 where there is no dictionary page.
    start = min(start, dictionary) if dictionary > 0 else start
    return ColumnChunk(start, start + _integer(column, _PACKED_BYTES), _integer(column, _UNPACKED_BYTES))


def _integer(structure: _Structure, number: int, *, default: int | None = None) -> int:
    value = structure.get(number, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"field {number} of its footer is no count")
    return value


class _Compact:
    """Thrift's compact protocol, read from the front; texts and fractions are passed over."""

    def __init__(self, content: bytes) -> None:
        self._content, self._position = content, 0

    def structure(self) -> _Structure:
        """The next structure, by field number."""
        fields: _Structure = {}
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else self._integer()
            kind = header & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # a truth value in a list, a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            self._position += 8
        elif kind == 8:
            length = self._varint()
            self._position += length
        elif kind in (9, 10):
            return self._list()
        elif kind == 12:
            return self.structure()
        else:
            raise ValueError(f"its footer has a field of the unknown kind {kind}")
        return None

    def _list(self) -> list[Any]:
        header = self._byte()
        count = self._varint() if header >> 4 == 15 else header >> 4
        return [self._value(header & 15) for _ in range(count)]

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) >= 128:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _byte(self) -> int:
        byte = self._content[self._position]
        self._position += 1
        return byte
