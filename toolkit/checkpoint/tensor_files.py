"""Reading of safetensors, a few rows at a time, and diagnosis of files that the library rejects."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toolkit.core.errors import CheckpointError
from toolkit.core.text import first_few

_BLOCK_BYTES = 1 << 22
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 1 << 28
_DOWNLOAD_AGAIN = "\nDownload the model again."


@dataclass(frozen=True)
class TensorPlace:
    """Location of a tensor, or of some of its rows: its file and its name there."""

    path: Path
    name: str
    dtype: str
    """Name in safetensors: F32, BF16, ..."""
    shape: tuple[int, ...]
    first: int = 0
    """Row of the stored tensor at which this one starts."""


def read_rows(place: TensorPlace) -> Iterator[torch.Tensor]:
    """A tensor in blocks along its first dimension, fp32, in order."""
    if place.dtype not in _DTYPES:
        raise CheckpointError(
            f"{place.path}: {place.name} has dtype {place.dtype}; quantized weights are not read.\n"
            "Use the model's version in bf16, fp16 or fp32."
        )
    row_bytes = math.prod(place.shape[1:]) * _DTYPES[place.dtype].itemsize
    num_rows = place.shape[0] if place.shape else 1
    rows_per_block = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for first in range(0, num_rows, rows_per_block):
        # Not bound to a name, which would keep the block alive while the caller reads other files.
        yield _block(place, place.first + first, place.first + min(first + rows_per_block, num_rows))


def _block(place: TensorPlace, first: int, stop: int) -> torch.Tensor:
    try:
        # Opened for each block: the library maps the file, and pages once read stay in memory until it is closed.
        with safe_open(place.path, framework="pt") as file:
            block = file.get_slice(place.name)[first:stop] if place.shape else file.get_tensor(place.name)
            return torch.as_tensor(block).to(torch.float32, copy=True)
    except OSError as error:
        raise CheckpointError(f"{place.path}: {place.name} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{place.path}: {place.name} cannot be read: {error}.{_DOWNLOAD_AGAIN}") from error


def read_header(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a safetensors file by name, checked to be complete."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: TensorPlace(path, name, str(part.get_dtype()), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is {_damage(path) or f'damaged: {error}.'}{_DOWNLOAD_AGAIN}") from error


def _damage(path: Path) -> str | None:
    """Message on what is wrong with a file that the library rejects, naming the tensor; None if nothing is found."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        content = file.read(length) if 0 < length <= min(_LONGEST_HEADER, size - 8) else b""
    if not content:
        return "damaged: it is not a safetensors file."
    try:
        header: dict[str, Any] = json.loads(content)
        header.pop("__metadata__", None)
        ranges = {
            name: (int(entry["data_offsets"][0]), int(entry["data_offsets"][1])) for name, entry in header.items()
        }
        shapes = {name: tuple(int(side) for side in entry["shape"]) for name, entry in header.items()}
        dtypes = {name: str(entry["dtype"]) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "damaged: its header cannot be parsed."
    for name, (start, stop) in ranges.items():
        itemsize = _DTYPES[dtypes[name]].itemsize if dtypes[name] in _DTYPES else None
        is_other = itemsize is not None and stop - start != math.prod(shapes[name]) * itemsize
        if is_other or min(shapes[name], default=0) < 0:
            return f"damaged: the bytes of {name} are not those of its shape {shapes[name]}."
    num_bytes = size - 8 - length
    if cut := sorted(name for name, (_, stop) in ranges.items() if stop > num_bytes):
        return f"cut off: it ends before {first_few(cut)}."
    end = 0
    for name, (start, stop) in sorted(ranges.items(), key=lambda item: item[1]):
        if start != end or stop < end:
            return f"damaged: {name} does not begin where the tensor before it ends."
        end = stop
    return f"damaged: {num_bytes - end:,} bytes after its last tensor belong to none." if end != num_bytes else None
