"""Weights of a Hugging Face folder, in one safetensors file or several, and their check against its configuration; and
the model that one of our checkpoints describes.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError

from toolkit.checkpoint.durable import stream_safetensors
from toolkit.checkpoint.manifest import COPY_AGAIN
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.tensor_files import TensorPlace, read_header, read_rows
from toolkit.core.errors import CheckpointError
from toolkit.core.settings import explain
from toolkit.core.text import first_few
from toolkit.model.config import ModelSettings
from toolkit.model.families import HubType
from toolkit.model.initialization import initial_weight
from toolkit.model.parameters import BLOCKS, EMBEDDING, HEAD, parameter_axes, shape_of
from toolkit.model_folder import wrapper_prefix

USE_WHOLE = "Use a checkpoint that a run or an import wrote."
_BLOCK = re.compile(rf"{re.escape(BLOCKS)}\.\d+\.")
BODY = "model."
"""Name prefix of all tensors except the head's, in every class."""
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class HubTensors:
    """A model's tensors under a Hugging Face `model_type`: each is one of our parameters, or several joined by rows.

    Attributes:
        parts: our parameter names, by Hugging Face name.
        shapes: by Hugging Face name.
        hub: the `model_type`.
    """

    def __init__(self, settings: ModelSettings, hub: HubType) -> None:
        self.settings = settings
        self.parts: dict[str, list[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes_of(settings).items():
            theirs = hub_name(name, hub)
            rows = self.shapes[theirs][0] if theirs in self.shapes else 0
            self.parts.setdefault(theirs, []).append(name)
            self.shapes[theirs] = (rows + shape[0], *shape[1:])
        self.embedding, self.head = hub_name(EMBEDDING, hub), hub_name(HEAD, hub)
        self.hub = hub


def hub_name(name: str, hub: HubType) -> str:
    """Name of the tensor that contains one of our parameters."""
    module, _, kind = name.rpartition(".")
    block = _BLOCK.match(module)
    place = block.group() if block else ""
    inside = module.removeprefix(place)
    return f"{place}{hub.names.get(inside, inside)}.{kind}"


class HubWeights:
    """All tensors of a folder, by their names there; made by `HubWeights.open`."""

    def __init__(self, folder: Path, places: dict[str, TensorPlace]) -> None:
        self.folder = folder
        self._places = places

    def by_our_names(self, tensors: HubTensors) -> "HubWeights":
        """The same by our parameter names; a parameter may be a range of rows of a tensor."""
        shapes, places = shapes_of(tensors.settings), {}
        for theirs, parts in tensors.parts.items():
            first = 0
            for name in parts:
                places[name] = replace(self._places[theirs], first=first, shape=shapes[name])
                first += shapes[name][0]
        return HubWeights(self.folder, places)

    @classmethod
    def open(cls, folder: Path) -> "HubWeights":
        """Find the files and check that every listed tensor is present and complete."""
        listed = _listed(folder)
        places: dict[str, TensorPlace] = {}
        for path in sorted(set(listed.values())) or [folder / _SINGLE]:
            wanted = sorted(name for name, file in listed.items() if file == path)
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is missing; {_INDEX} says that it holds {first_few(wanted)}.\nDownload the model again."
                )
            found = read_header(path)
            if lost := [name for name in wanted if name not in found]:
                raise CheckpointError(
                    f"{path} lacks {first_few(lost)}, which {_INDEX} says it holds.\nDownload the model again."
                )
            places |= {name: place for name, place in found.items() if not listed or listed.get(name) == path}
        return cls(folder, places)

    def with_embedding(self, tensors: HubTensors) -> "HubWeights":
        """The same with the embedding under its own name, if it is stored under that of the tied head, as by
        safetensors' `save_model`.
        """
        embedding, head = tensors.embedding, tensors.head
        if embedding in self._places or head not in self._places:
            return self
        others = {name: place for name, place in self._places.items() if name != head}
        return HubWeights(self.folder, others | {embedding: self._places[head]})

    def by_class_names(self, tensors: HubTensors) -> tuple["HubWeights", str]:
        """The same by the names of the class with a head (the bare class omits a prefix); and the prefix that a wrapper
        put in front of all of them.
        """
        of_class = {name: tensors.hub.in_class(name) for name in self._places}
        wrapper = wrapper_prefix(of_class.values(), tensors.shapes, of_class=BODY)
        places, names = dict[str, TensorPlace](), dict[str, str]()
        for name, place in self._places.items():
            own = of_class[name].removeprefix(wrapper)
            own = f"{BODY}{own}" if f"{BODY}{own}" in tensors.shapes else own
            if own in places:
                raise CheckpointError(
                    f"{self.folder} holds both {names[own]} and {name}, two names of one tensor ({own}).\n"
                    "Remove the one that does not belong to the model, or download the model again."
                )
            places[own], names[own] = place, name
        return HubWeights(self.folder, places), wrapper

    def with_new_head(self, tensors: HubTensors, path: Path) -> "HubWeights":
        """The same with initial values for the head's missing tensors, which are written to `path`."""
        settings = tensors.settings
        shapes = {name: shape for name, shape in tensors.shapes.items() if name not in self._places}

        def read(name: str) -> list[torch.Tensor]:
            (ours,) = tensors.parts[name]
            return [initial_weight(ours, shapes[name], settings=settings, seed=0)]

        stream_safetensors(path, shapes, read, dtype=torch.float32)
        return HubWeights(self.folder, self._places | read_header(path))

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._places[name].shape

    def rows(self, name: str) -> Iterator[torch.Tensor]:
        """The tensor in blocks along its first dimension, fp32, in order."""
        return read_rows(self._places[name])

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A whole tensor."""
        whole = torch.empty(self.shape(name), dtype=dtype)
        first = 0
        for block in self.rows(name):
            whole[first : first + len(block)] = block
            first += len(block)
        return whole


def _listed(folder: Path) -> dict[str, Path]:
    """File of each tensor, from the index of a model in several files; empty for a model in one file."""
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
        outside = sorted(name for name, file in files.items() if not file or Path(file).name != file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{index} is damaged: it has no weight_map of tensors to files.\nDownload the model again."
        ) from error
    if not files or outside:
        reason = f"it says that {outside[0]} is in {files[outside[0]]!r}" if outside else "its weight_map is empty"
        raise CheckpointError(
            f"{index} is damaged: {reason}. It should name files of its own folder.\nDownload the model again."
        )
    return {name: folder / file for name, file in files.items()}


def settings_of(source: Checkpoint) -> ModelSettings:
    """Model settings from a checkpoint's manifest; raise `CheckpointError` if invalid or too small for special ids."""
    try:
        settings = ModelSettings.model_validate(source.manifest.table("model"))
    except ValidationError as error:
        found = explain(error, ModelSettings, group="settings.model")
        raise CheckpointError(
            f"{source.path}/manifest.json does not describe a model: {found.splitlines()[0]} {USE_WHOLE}"
        ) from error
    if settings.vocab_size is None:
        raise CheckpointError(f"{source.path}/manifest.json does not say settings.model.vocab_size. {USE_WHOLE}")
    named = source.manifest.vocabulary.model_dump(include={"mask_id", "pad_id", "bos_id", "eos_id"})
    for role, token_id in named.items():
        if token_id is not None and token_id >= settings.vocab_size:
            raise CheckpointError(
                f"{source.path}/manifest.json gives {role}={token_id:,}, and the model has {settings.vocab_size:,} "
                f"entries: the two do not belong together. {COPY_AGAIN}"
            )
    return settings


def shapes_of(settings: ModelSettings) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of our model, by name; a tied head has none."""
    return {name: shape_of(axes, settings) for name, axes in parameter_axes(settings).items()}
