"""Check of a Hugging Face model's tensors against its configuration: names, shapes, nothing left over."""

from collections.abc import Iterator

import torch

from toolkit.conversion.weights import EMBEDDING, HEAD, HubWeights
from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.text import first_few
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder

_ANGLES = "rotary_emb.inv_freq"


def shapes_of(settings: ModelSettings) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of our model, by name; a tied head has none."""
    with torch.device("meta"):
        encoder = Encoder(settings)
    return {name: tuple(parameter.shape) for name, parameter in encoder.named_parameters()}


def check_tensors(weights: HubWeights, settings: ModelSettings) -> Iterator[str]:
    """Raise for tensors that the model does not have; yield notes on those that are dropped without loss.

    Raises:
        CheckpointError: naming the tensors.
    """
    shapes = shapes_of(settings)
    if missing := sorted(shapes.keys() - weights.names):
        raise CheckpointError(
            f"{weights.folder} lacks {first_few(missing)}, which its config.json requires"
            f"{_instead(weights.names - shapes.keys())}.\n"
            "Download the model again; one that was saved without its head has to be saved with it."
        )
    for name, shape in shapes.items():
        if weights.shape(name) != shape:
            raise CheckpointError(
                f"{weights.folder}: {name} has shape {weights.shape(name)}, but its config.json describes {shape}.\n"
                "Download the model again, or the configuration that belongs to it."
            )
    unknown = []
    for name in sorted(weights.names - shapes.keys()):
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


def _instead(names: frozenset[str]) -> str:
    return f"; it holds {first_few(sorted(names))} instead" if names else ""
