"""Reading safetensors a few rows at a time.

The library maps a file and copies each tensor out of it, so that its largest tensor is in memory twice. Here blocks of
rows are read, turned into fp32 and handed on. A file is looked at before it is read: one that was cut off names the
tensors that it lost.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.core.errors import CheckpointError
from toolkit.core.text import first_few

_BLOCK_BYTES = 1 << 24
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 1 << 28
_FETCH_AGAIN = "\nFetch the model again."


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies: `start` and `stop` are bytes of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_rows(name: str, place: TensorPlace) -> Iterator[torch.Tensor]:
    """A tensor in blocks along its first dimension, fp32, in order.

    Raises:
        CheckpointError: its numbers are of a kind that is not read, or its file cannot be read.
    """
    if place.dtype not in _DTYPES:
        raise CheckpointError(
            f"{place.path}: {name} holds {place.dtype} numbers; quantised weights are not read.\n"
            "Use the model's version in bf16, fp16 or fp32."
        )
    dtype = _DTYPES[place.dtype]
    row_size = math.prod(place.shape[1:])
    row_bytes = row_size * dtype.itemsize
    num_rows = place.shape[0] if place.shape else 1
    rows_per_block = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for first in range(0, num_rows, rows_per_block):
        count = min(rows_per_block, num_rows - first)
        data = _read_bytes(name, place, place.start + first * row_bytes, count * row_bytes)
        yield torch.frombuffer(data, dtype=dtype).view(count, *place.shape[1:]).float()


def _read_bytes(name: str, place: TensorPlace, start: int, count: int) -> bytearray:
    data = bytearray(count)
    try:
        with place.path.open("rb", buffering=0) as file:
            file.seek(start)
            done = 0
            while done < count and (more := file.readinto(memoryview(data)[done:])):
                done += more
    except OSError as error:
        raise CheckpointError(f"{place.path}: {name} cannot be read: {error.strerror}.") from error
    if done != count:
        raise CheckpointError(f"{place.path} ends inside {name}.{_FETCH_AGAIN}")
    return data


def read_header(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a safetensors file: 8 bytes of length, JSON of that length, then the numbers.

    Raises:
        CheckpointError: it is not such a file, or the numbers of a tensor are not all there.
    """
    content, size = _read_header(path)
    begin = 8 + len(content)
    try:
        header: dict[str, Any] = json.loads(content)
        places = {
            name: TensorPlace(
                path=path,
                dtype=str(entry["dtype"]),
                shape=tuple(int(side) for side in entry["shape"]),
                start=begin + int(entry["data_offsets"][0]),
                stop=begin + int(entry["data_offsets"][1]),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its header is not readable.{_FETCH_AGAIN}") from error
    _check_places(path, places, begin=begin, size=size)
    return places


def _read_header(path: Path) -> tuple[bytes, int]:
    """The header, as it lies there, and the size of the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            content = file.read(length) if 0 < length <= min(_LONGEST_HEADER, size - 8) else b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not content:
        raise CheckpointError(f"{path} is damaged: it is no safetensors file.{_FETCH_AGAIN}")
    return content, size


def _check_places(path: Path, places: Mapping[str, TensorPlace], *, begin: int, size: int) -> None:
    """The tensors lie end to end and fill the file, each with the bytes of its shape, as the library asks it.

    Raises:
        CheckpointError: naming the tensor.
    """
    for name, place in places.items():
        itemsize = _DTYPES[place.dtype].itemsize if place.dtype in _DTYPES else None
        is_other = itemsize is not None and place.stop - place.start != math.prod(place.shape) * itemsize
        if is_other or min(place.shape, default=0) < 0:
            raise CheckpointError(
                f"{path} is damaged: the bytes of {name} are not those of its shape {place.shape}.{_FETCH_AGAIN}"
            )
    if cut := sorted(name for name, place in places.items() if place.stop > size):
        raise CheckpointError(f"{path} is cut off: it ends before {first_few(cut)}.{_FETCH_AGAIN}")
    end = begin
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].stop)):
        if place.start != end or place.stop < end:
            raise CheckpointError(
                f"{path} is damaged: {name} does not begin where the tensor before it ends.{_FETCH_AGAIN}"
            )
        end = place.stop
    if end != size:
        raise CheckpointError(
            f"{path} is damaged: {size - end:,} bytes behind its last tensor belong to none.{_FETCH_AGAIN}"
        )
