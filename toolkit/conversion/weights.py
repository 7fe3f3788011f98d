"""Weights of a Hugging Face folder, in one safetensors file or several, and their check against its configuration; and
the model that a checkpoint of ours describes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import ValidationError

from toolkit.checkpoint.manifest import COPY_AGAIN
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.tensor_files import TensorPlace, read_header, read_rows
from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.settings import explain
from toolkit.core.text import first_few
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Names of the two matrices that are one where a model ties them."""
USE_WHOLE = "Use a checkpoint that a run or an import wrote."
_ANGLES = "rotary_emb.inv_freq"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class HubWeights:
    """Every tensor of a folder by its name. Made by `HubWeights.open`."""

    def __init__(self, folder: Path, places: dict[str, TensorPlace]) -> None:
        self.folder = folder
        self._places = places

    @classmethod
    def open(cls, folder: Path, *, is_tied: bool) -> "HubWeights":
        """Find the files and check that every tensor they announce is there whole.

        Where embedding and head are one, it may be stored under the head's name alone, as by safetensors' `save_model`.
        """
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
        if is_tied and HEAD in places and EMBEDDING not in places:
            places[EMBEDDING] = places.pop(HEAD)
        return cls(folder, places)

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
    """File of each tensor, as the index of a model in several files says; empty for a model in one file."""
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
    """The shape of a checkpoint's model, as its manifest describes it, with ids of the tokenizer that it has."""
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
    with torch.device("meta"):
        encoder = Encoder(settings)
    return {name: tuple(parameter.shape) for name, parameter in encoder.named_parameters()}


def check_tensors(weights: HubWeights, settings: ModelSettings) -> Iterator[str]:
    """Raise for tensors that the model does not have; yield notes on those that are dropped without loss."""
    shapes = shapes_of(settings)
    others = sorted(weights.names - shapes.keys())
    if missing := sorted(shapes.keys() - weights.names):
        instead = f"; it holds {first_few(others)} instead" if others else ""
        raise CheckpointError(
            f"{weights.folder} lacks {first_few(missing)}, which its config.json requires{instead}.\n"
            "Download the model again; one that was saved without its head has to be saved with it."
        )
    for name, shape in shapes.items():
        if weights.shape(name) != shape:
            raise CheckpointError(
                f"{weights.folder}: {name} has shape {weights.shape(name)}, but its config.json describes {shape}.\n"
                "Download the model again, or the configuration that belongs to it."
            )
    unknown = []
    for name in others:
        if name.endswith(_ANGLES):
            continue
        if name == HEAD and settings.tie_word_embeddings:
            _check_tied(weights)
            yield f"{HEAD} is stored beside {EMBEDDING}, equals it, and is left out"
        elif name.endswith("o_proj.bias") and settings.qkv_bias:
            _check_zero(weights, name)
        else:
            unknown.append(name)
    if unknown:
        raise CheckpointError(
            f"{weights.folder} holds {first_few(unknown)}, which a model of its config.json does not have.\n"
            "Without them it would be another model. See whether config.json and weights belong together."
        )
    if any(name.endswith(_ANGLES) for name in weights.names):
        yield "the stored rotary angles (inv_freq) are left out: they follow from config.json"
    if any(name.endswith("o_proj.bias") for name in weights.names):
        yield "the biases of o_proj are zero and are left out"


def _check_tied(weights: HubWeights) -> None:
    pairs = zip(weights.rows(EMBEDDING), weights.rows(HEAD), strict=False)
    if weights.shape(HEAD) != weights.shape(EMBEDDING) or not all(torch.equal(one, other) for one, other in pairs):
        raise CheckpointError(
            f"{weights.folder}: config.json ties {HEAD} to {EMBEDDING}, but the two differ.\n"
            "Set tie_word_embeddings to false in config.json if the head was trained apart."
        )


def _check_zero(weights: HubWeights, name: str) -> None:
    if any(bool(block.any()) for block in weights.rows(name)):
        raise UserError(
            f"{weights.folder}: {name} is not zero. Biases at the output of attention (attention_bias on o_proj) are a "
            "part that this toolkit's model does not have, and without them it would be another model.\n"
            "Take a model without them."
        )
