"""The bytes of local files: opened, unpacked where they are packed, and what goes wrong said with the file's name."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from toolkit.core.errors import UserError
from toolkit.preprocess.sources.source import Compression, Format, Source

_CODECS = {Compression.GZIP: "gzip", Compression.ZSTD: "zstd"}


@dataclass(frozen=True)
class ByteStream:
    """The bytes of a source, unpacked, from first to last.

    Attributes:
        file: reads them.
        source_position: how many bytes of the file itself are read.
    """

    file: BinaryIO
    source_position: Callable[[], int]


@contextmanager
def open_stream(source: Source, *, start: int = 0) -> Iterator[ByteStream]:
    """A local source as one stream of bytes, from byte `start` of the unpacked text on.

    Raises:
        UserError: the file cannot be read, is not what its ending says, or is cut off.
    """
    with open_file(source) as file:
        if source.compression is None:
            file.seek(start)
            yield ByteStream(file, file.tell)
            return
        if not source.num_bytes:
            raise UserError(
                f"The source {source.name} is empty: it has not even a {_CODECS[source.compression]} header. "
                "Fetch it again, or leave it out."
            )
        with _unpack(file, source.compression) as unpacked:
            _skip(unpacked, start, source)
            yield ByteStream(unpacked, file.tell)


@contextmanager
def open_file(source: Source) -> Iterator[BinaryIO]:
    """The file of a local source as it was found; errors while it is open are said with its name.

    Raises:
        UserError: it cannot be read, or was changed since.
    """
    with errors_naming(source), open(source.name, "rb") as file:
        status = os.fstat(file.fileno())
        if (status.st_size, str(status.st_mtime_ns)) != (source.num_bytes, source.version):
            raise UserError(f"The source {source.name} was changed meanwhile. Start again when nothing writes to it.")
        yield file


@dataclass(frozen=True)
class LocalFile:
    """A local source, opened by every thread that reads it."""

    source: Source

    def open(self, *ranges: tuple[int, int]) -> AbstractContextManager[BinaryIO]:
        """The file, opened when the context is entered; which ranges will be read makes no difference."""
        return open_file(self.source)

    def close(self) -> None:
        """Nothing is kept."""

    def abandon(self) -> None:
        """Nothing is under way."""


@contextmanager
def errors_naming(source: Source) -> Iterator[None]:
    """Turn what the system and the libraries say of a file into an error that names it."""
    kind = "Parquet" if source.compression is None else _CODECS[source.compression]
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise UserError(
                f"The source {source.name} cannot be read: {error.strerror}. Allow it, or leave it out."
            ) from error
        raise UserError(_broken(source, kind, error)) from error
    except Exception as error:
        # A damaged footer makes Arrow's Python side stumble, too.
        is_of_footer = source.format is Format.PARQUET and isinstance(error, ValueError | LookupError)
        if not (is_of_footer or type(error).__module__.startswith("pyarrow")):
            raise
        raise UserError(_broken(source, kind, error)) from error


def _broken(source: Source, kind: str, error: Exception) -> str:
    first_line = str(error).partition("\n")[0] or type(error).__name__
    found = f"The source {source.name} is not a {kind} file that can be read: {first_line}"
    return f"{found}. Fetch it again, or leave it out."


@contextmanager
def _unpack(file: BinaryIO, compression: Compression) -> Iterator[BinaryIO]:
    """Unpacks files of several members or frames too; one that ends early or goes on with something else is broken."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.PythonFile(file), _CODECS[compression]) as stream:
        yield io.BufferedReader(stream, 1 << 20)


def _skip(file: BinaryIO, count: int, source: Source) -> None:
    while count:
        read = len(file.read(min(count, 1 << 20)))
        if not read:
            raise UserError(
                f"The source {source.name} is shorter than it was when its first rows were read. "
                "Start again when nothing writes to it."
            )
        count -= read
