"""The weights of a Hugging Face folder, read a few rows at a time.

Whole models are larger than memory, and their largest tensor is a good part of it. So the files are not mapped and no
tensor is held: blocks of rows are read, turned into fp32 and handed on. A file is looked at before it is read: one
that was cut off names the tensors that it lost.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.core.errors import CheckpointError

__all__ = ["HubWeights"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BLOCK_BYTES = 1 << 24
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 1 << 28


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies: `start` and `stop` are bytes of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class HubWeights:
    """Every tensor of a folder by its name. Made by `HubWeights.open`."""

    def __init__(self, folder: Path, places: dict[str, _Place]) -> None:
        self.folder = folder
        self._places = places

    @classmethod
    def open(cls, folder: Path) -> "HubWeights":
        """Find the files and check that every tensor they announce is there whole.

        Raises:
            CheckpointError: no safetensors, or a file is missing, damaged or cut off; tensors are named.
        """
        listed = _listed(folder)
        places: dict[str, _Place] = {}
        for path in sorted(set(listed.values())) or [folder / _SINGLE]:
            wanted = sorted(name for name, file in listed.items() if file == path)
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is missing; {_INDEX} says that it holds {_some(wanted)}.\nFetch the model again."
                )
            found = _read_header(path)
            if lost := [name for name in wanted if name not in found]:
                raise CheckpointError(f"{path} lacks {_some(lost)}, which {_INDEX} says it holds.")
            places |= {name: place for name, place in found.items() if not listed or listed.get(name) == path}
        return cls(folder, places)

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._places[name].shape

    def rows(self, name: str) -> Iterator[torch.Tensor]:
        """The tensor in blocks along its first dimension, fp32, in order.

        Raises:
            CheckpointError: its numbers are of a kind that is not read, or its file cannot be read.
        """
        place = self._places[name]
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

    def tensor(self, name: str) -> torch.Tensor:
        """A whole tensor, fp32."""
        whole = torch.empty(self.shape(name))
        first = 0
        for block in self.rows(name):
            whole[first : first + len(block)] = block
            first += len(block)
        return whole


def _listed(folder: Path) -> dict[str, Path]:
    """File of each tensor, as the index of a model in several files says; empty for a model in one file.

    Raises:
        CheckpointError: there are no safetensors, or the index cannot be read.
    """
    if (folder / _SINGLE).is_file():
        return {}
    index = folder / _INDEX
    if not index.is_file():
        pickled = sorted(path.name for path in folder.glob("pytorch_model*"))
        held = (
            f"it holds {pickled[0]}, a pickle, which is not read because it can run code" if pickled else "no weights"
        )
        raise CheckpointError(
            f"{folder} has no {_SINGLE} and no {_INDEX}: {held}.\n"
            "Load the model in transformers and write it with save_pretrained, which writes safetensors."
        )
    try:
        files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / Path(file).name for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: it has no weight_map of tensors to files.") from error


def _read_header(path: Path) -> dict[str, _Place]:
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
                name: _Place(
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
            raise CheckpointError(f"{path} is damaged: the bytes of {name} are not those of its shape {place.shape}.")
    if cut := sorted(name for name, place in places.items() if place.stop > size):
        raise CheckpointError(f"{path} is cut off: it ends before {_some(cut)}.\nFetch the model again.")
    return places


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
