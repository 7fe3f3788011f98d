"""The footer of a Parquet file: what pyarrow makes of it, and where the chunks of one column are.

Asking pyarrow (26) for a column chunk of a damaged footer ends the process: the exception of its C++ side is not
passed on. So places and sizes are read here, from the same bytes, once pyarrow has accepted them. They are Thrift
structures in the compact protocol; the numbers of their fields are those of parquet.thrift in apache/parquet-format.

Parsing all of it in Python takes seconds for tables of hundreds of columns. So the descriptions of the wanted column
are searched for by its name, and parsed from there; only where they are not found once in each row group is the whole
footer parsed.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16

_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA = 4, 1, 3
_ENCODINGS, _NUM_VALUES, _UNPACKED_BYTES, _PACKED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 2, 5, 6, 7, 9, 11

_Structure = dict[int, Any]


class SeekableFile(Protocol):
    """The two methods of a file that are needed here."""

    def seek(self, offset: int, /) -> int:
        """Move to a byte."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes."""


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group: bytes start..stop - 1 of the file; `unpacked_bytes` once it is decompressed."""

    start: int
    stop: int
    num_rows: int
    unpacked_bytes: int


@dataclass(frozen=True)
class Footer:
    """A footer as pyarrow, which accepted it, has it; and its bytes."""

    metadata: "pq.FileMetaData"
    content: bytes


def read_footer(file: SeekableFile, num_bytes: int) -> Footer:
    """Read the footer of a Parquet file of `num_bytes` bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.seek(max(0, num_bytes - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("it does not end with PAR1; it may be cut off")
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > num_bytes:
        raise ValueError(f"its footer of {length:,} bytes does not fit in the file; it may be cut off")
    if length + 8 > len(tail):
        file.seek(num_bytes - length - 8)
        tail = file.read(length + 8)
    footer = tail[-length - 8 : -8]
    return Footer(pq.read_metadata(pa.BufferReader(_MAGIC + footer + tail[-8:])), footer)


def column_chunks(footer: Footer, name: str) -> list[ColumnChunk]:
    """The chunks of a top-level column that is not nested, one for each row group."""
    metadata = footer.metadata
    num_rows = 0
    for find in (_found_chunks, _parsed_chunks):
        try:
            chunks = find(footer, name)
        except (AttributeError, TypeError) as error:  # pyarrow passes over a field of a kind that it does not expect
            raise ValueError("its footer is damaged") from error
        num_rows = sum(chunk.num_rows for chunk in chunks)
        if len(chunks) == metadata.num_row_groups and num_rows == metadata.num_rows:
            return chunks
    raise ValueError(f"its footer counts {metadata.num_rows} rows, its row groups {num_rows}")


def _found_chunks(footer: Footer, name: str) -> list[ColumnChunk]:
    """Chunks behind each place that names the column as a chunk's description does: a list of one name, field 3."""
    encoded = name.encode()
    mark = b"\x19\x18" + _varint(len(encoded)) + encoded
    chunks, place = list[ColumnChunk](), footer.content.find(mark)
    while place >= 0:
        with suppress(ValueError, LookupError):  # a statistic may hold the same bytes
            fields = _Compact(footer.content, place).structure(first=_ENCODINGS, last=_DICTIONARY_OFFSET)
            chunks.append(_chunk(fields))
        place = footer.content.find(mark, place + 1)
    return chunks


def _parsed_chunks(footer: Footer, name: str) -> list[ColumnChunk]:
    schema = footer.metadata.schema
    number = [schema.column(number).path for number in range(len(schema))].index(name)
    groups = _Compact(footer.content).structure().get(_ROW_GROUPS) or []
    return [_chunk(group[_COLUMNS][number][_COLUMN_METADATA]) for group in groups]


def _varint(value: int) -> bytes:
    low = value & 127
    return bytes([low | 128]) + _varint(value >> 7) if value > 127 else bytes([low])


def _chunk(column: _Structure) -> ColumnChunk:
    start = _integer(column, _DATA_OFFSET)
    dictionary = _integer(column, _DICTIONARY_OFFSET, default=0)
    # Some writers leave 0 where there is no dictionary page.
    start = min(start, dictionary) if dictionary > 0 else start
    stop = start + _integer(column, _PACKED_BYTES)
    return ColumnChunk(start, stop, _integer(column, _NUM_VALUES), _integer(column, _UNPACKED_BYTES))


def _integer(structure: _Structure, number: int, *, default: int | None = None) -> int:
    value = structure.get(number, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"field {number} of a column in its footer is not a count")
    return value


class _Compact:
    """Thrift's compact protocol, read from a byte on; texts and fractions are passed over."""

    def __init__(self, content: bytes, position: int = 0) -> None:
        self._content, self._position = content, position

    def structure(self, *, first: int = 0, last: int = 1 << 16) -> _Structure:
        """The next structure, by field number: its fields behind `first`, up to `last`."""
        fields: _Structure = {}
        number = first
        while number < last and (header := self._byte()):
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
            self._position += 7
            self._byte()
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
