"""Reading safetensors a few rows at a time.

The library maps a file and copies each tensor out of it, so that its largest tensor is in memory twice. Here blocks of
rows are read, turned into fp32 and handed on. A file is looked at before it is read: one that was cut off names the
tensors that it lost.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.core.errors import CheckpointError

__all__ = ["TensorPlace", "read_header", "read_rows", "some"]

_BLOCK_BYTES = 1 << 24
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 1 << 28


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
    with place.path.open("rb") as file:
        file.seek(place.start)
        for first in range(0, num_rows, rows_per_block):
            count = min(rows_per_block, num_rows - first)
            data = bytearray(file.read(count * row_bytes))
            if len(data) != count * row_bytes:
                raise CheckpointError(f"{place.path} ends inside {name}.\nFetch the model again.")
            yield torch.frombuffer(data, dtype=dtype).view(count, *place.shape[1:]).float()


def read_header(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a safetensors file: 8 bytes of length, JSON of that length, then the numbers.

    Raises:
        CheckpointError: it is not such a file, or the numbers of a tensor are not all there.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - 8):
            raise CheckpointError(f"{path} is damaged: it is no safetensors file.\nFetch the model again.")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            places = {
                name: TensorPlace(
                    path=path,
                    dtype=str(entry["dtype"]),
                    shape=tuple(int(side) for side in entry["shape"]),
                    start=8 + length + int(entry["data_offsets"][0]),
                    stop=8 + length + int(entry["data_offsets"][1]),
                )
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{path} is damaged: its header is not readable.\nFetch the model again.") from error
    for name, place in places.items():
        itemsize = _DTYPES[place.dtype].itemsize if place.dtype in _DTYPES else None
        if itemsize is not None and place.stop - place.start != math.prod(place.shape) * itemsize:
            raise CheckpointError(
                f"{path} is damaged: the bytes of {name} are not those of its shape {place.shape}.\nFetch the model "
                "again."
            )
    if cut := sorted(name for name, place in places.items() if place.stop > size):
        raise CheckpointError(f"{path} is cut off: it ends before {some(cut)}.\nFetch the model again.")
    return places


def some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
