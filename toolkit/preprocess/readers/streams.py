"""Files as streams of bytes, local or in object storage: opened, decompressed, with errors that name the file."""

import bz2
import io
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from toolkit.core.errors import UserError
from toolkit.core.text import quoted
from toolkit.preprocess.readers.ranges import RangedFile
from toolkit.preprocess.sources.source import Compression, Format, Source
from toolkit.storage import Object, is_url, list_objects, read

_CODECS = {Compression.GZIP: "gzip", Compression.ZSTD: "zstd", Compression.BZIP2: "bz2", Compression.XZ: "xz"}
_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor
_DECOMPRESSORS: dict[Compression, Callable[[], _Decompressor]] = {
    Compression.BZIP2: bz2.BZ2Decompressor,
    Compression.XZ: partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
}
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class ByteStream:
    """The decompressed bytes of a source, and how many bytes of its file have been read."""

    file: BinaryIO
    source_position: Callable[[], int]


@contextmanager
def open_stream(source: Source) -> Iterator[ByteStream]:
    """Open a source as a stream of decompressed bytes."""
    with open_file(source, (0, source.num_bytes)) as file:
        if source.compression is None:
            yield ByteStream(file, file.tell)
            return
        if not source.num_bytes:
            raise UserError(
                f"the source {source.name} is empty: a {_CODECS[source.compression]} file has at least a header. "
                "Download it again, or leave it out."
            )
        with _decompressed(file, source.compression) as content:
            yield ByteStream(content, file.tell)


@contextmanager
def open_file(source: Source, *ranges: tuple[int, int]) -> Iterator[BinaryIO]:
    """Open the file of a source; UserError if it has changed since it was found. Errors while it is open name it.

    If it is in object storage, these ranges (first byte, last byte + 1) are fetched ahead.
    """
    if is_url(source.name):
        with errors_naming(source), remote_file(source) as remote:
            yield io.BufferedReader(remote.open(*ranges), _BLOCK_BYTES)
        return
    with errors_naming(source), open(source.name, "rb") as file:
        status = os.fstat(file.fileno())
        if (status.st_size, str(status.st_mtime_ns)) != (source.num_bytes, source.version):
            raise _changed(source)
        yield file


def remote_file(source: Source) -> RangedFile:
    """The file of a source in object storage; UserError if it has changed since it was found."""
    if list_objects(source.name).get("") != Object(source.num_bytes, source.version):
        raise _changed(source)
    return RangedFile(source.num_bytes, lambda *part: read(source.name, part))


def _changed(source: Source) -> UserError:
    return UserError(f"the source {source.name} changed while it was read. Start again when nothing writes to it.")


@contextmanager
def errors_naming(source: Source) -> Iterator[None]:
    """Convert errors of the system and the libraries to a UserError that names the file."""
    kind = "Parquet" if source.compression is None else _CODECS[source.compression]
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(
            f"memory ran out while the source {source.name} was read. Cut its long rows, use fewer --workers, or leave "
            "it out."
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise UserError(
                f"could not read the source {source.name}: {error.strerror}. Allow access to it, or leave it out."
            ) from error
        raise _broken(source, kind, error) from error
    except Exception as error:
        # For a damaged footer, the Python part of Arrow also raises ordinary errors.
        is_of_footer = source.format is Format.PARQUET and isinstance(error, ValueError | LookupError)
        if not (is_of_footer or isinstance(error, lzma.LZMAError) or type(error).__module__.startswith("pyarrow")):
            raise
        raise _broken(source, kind, error) from error


def _broken(source: Source, kind: str, error: Exception) -> UserError:
    first_line = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    remedy = "Download it again, or leave it out."
    if kind == "zstd" and "requires too much memory" in first_line:
        first_line = "its window is larger than 128 MB (zstd --long), which the Arrow library does not decompress"
        remedy = f"Compress it again without --long: zstd -d --long=31 -c {quoted(source.name)} | zstd -o NEW_NAME.zst"
    return UserError(f"could not read the source {source.name} as {kind}: {first_line}. {remedy}")


@contextmanager
def _decompressed(file: BinaryIO, compression: Compression) -> Iterator[BinaryIO]:
    import pyarrow as pa

    if compression in _DECOMPRESSORS:
        yield io.BufferedReader(_Members(file, _DECOMPRESSORS[compression]), 1 << 20)
        return
    with pa.CompressedInputStream(pa.PythonFile(file), _CODECS[compression]) as stream:
        yield io.BufferedReader(stream, 1 << 20)


class _Members(io.RawIOBase):
    """Concatenated content of the members of a bz2 or xz file.

    Arrow cannot read xz, and fails on an empty member of bz2; `BZ2File` and `LZMAFile` silently ignore what follows
    the last member.
    """

    def __init__(self, file: BinaryIO, decompressor: Callable[[], _Decompressor]) -> None:
        super().__init__()
        self._file, self._new, self._member = file, decompressor, decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            if self._member.eof:
                # xz allows zeros between members.
                packed = self._member.unused_data.lstrip(b"\0")
                while not packed and (more := self._file.read(_BLOCK_BYTES)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    return 0
                self._member = self._new()
            else:
                packed = self._file.read(_BLOCK_BYTES) if self._member.needs_input else b""
                if self._member.needs_input and not packed:
                    raise OSError("it is cut off")
            content = self._member.decompress(packed, len(buffer))
        buffer[: len(content)] = content
        return len(content)
