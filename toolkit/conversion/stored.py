"""Tensors of an imported model, by the names of the class with a head, checked against its configuration.

Names with and without the class's own prefix are equivalent; a wrapper's prefix and the head of a task are dropped. A
new head may be created.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from toolkit.conversion.families import Described
from toolkit.conversion.forms import ImportHead
from toolkit.conversion.weights import BODY, HubTensors, HubWeights
from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.text import first_few

_ANGLES = "rotary_emb.inv_freq"


def open_stored(
    folder: Path, described: Described, tensors: HubTensors, head: ImportHead, place: Path, changes: list[str]
) -> HubWeights:
    """Tensors of the class with a head; writes a new head inside `place`, and appends decisions to `changes`."""
    stored, wrapper = HubWeights.open(folder).by_class_names(tensors)
    if wrapper:
        changes.append(f"names of tensors: {wrapper} in front of each is left out")
    if described.settings.tie_word_embeddings:
        stored = stored.with_embedding(tensors)
    if lacking := _missing_head(stored, tensors):
        if head is ImportHead.OWN:
            raise CheckpointError(
                f"{folder} has no complete language-model head: {first_few(lacking)} missing, as in a model saved "
                "from its bare class or with a task head.\n"
                "Make a new head with --head new, or give the language model that it was made from."
            )
        stored = stored.with_new_head(tensors, place / "head.safetensors")
        changes.append(f"head: first values for {first_few(lacking)}, to be trained")
    elif head is ImportHead.NEW:
        changes.append("head: the model's own, which is whole; nothing is new")
    changes += _check_tensors(stored, tensors, task_class=described.task_class)
    return stored


def _missing_head(weights: HubWeights, tensors: HubTensors) -> list[str]:
    """Sorted names of the head's missing tensors; raise `CheckpointError` if any other tensor is missing."""
    missing = sorted(tensors.shapes.keys() - weights.names)
    if any(name.startswith(BODY) for name in missing):
        others = sorted(weights.names - tensors.shapes.keys())
        instead = f"; it holds {first_few(others)} instead" if others else ""
        raise CheckpointError(
            f"{weights.folder} lacks {first_few(missing)}, which its config.json requires{instead}.\n"
            "Download the model again."
        )
    return missing


def _check_tensors(weights: HubWeights, tensors: HubTensors, *, task_class: str | None) -> Iterator[str]:
    """Raise for tensors that do not belong to the model; yield notes on tensors that are dropped without loss.

    `task_class` is the class of a model with a task head, which is dropped.
    """
    settings, others = tensors.settings, sorted(weights.names - tensors.shapes.keys())
    for name, shape in tensors.shapes.items():
        if weights.shape(name) != shape:
            raise CheckpointError(
                f"{weights.folder}: {name} has shape {weights.shape(name)}, but its config.json describes {shape}.\n"
                "Download the model again, or the configuration that belongs to it."
            )
    unknown, of_task = [], []
    for name in others:
        if name.endswith(_ANGLES):
            continue
        if name == tensors.head and settings.tie_word_embeddings:
            _check_tied(weights, tensors)
            yield f"{tensors.head} is stored beside {tensors.embedding}, equals it, and is left out"
        elif name.endswith("o_proj.bias") and settings.qkv_bias:
            _check_zero(weights, name)
        elif task_class and not name.startswith(BODY):
            of_task.append(name)
        else:
            unknown.append(name)
    if unknown:
        raise CheckpointError(
            f"{weights.folder} holds {first_few(unknown)}, which a model of its config.json does not have.\n"
            "Without them it would be another model. See whether config.json and weights belong together."
        )
    if of_task:
        yield f"the head of {task_class} is left out: {first_few(of_task)}"
    if any(name.endswith(_ANGLES) for name in weights.names):
        yield "the stored rotary angles (inv_freq) are left out: they follow from config.json"
    if any(name.endswith("o_proj.bias") for name in weights.names):
        yield "the biases of o_proj are zero and are left out"


def _check_tied(weights: HubWeights, tensors: HubTensors) -> None:
    embedding, head = tensors.embedding, tensors.head
    pairs = zip(weights.rows(embedding), weights.rows(head), strict=False)
    if weights.shape(head) != weights.shape(embedding) or not all(torch.equal(one, other) for one, other in pairs):
        raise CheckpointError(
            f"{weights.folder}: config.json ties {head} to {embedding}, but the two differ.\n"
            "Set tie_word_embeddings to false in config.json if the head was trained apart."
        )


def _check_zero(weights: HubWeights, name: str) -> None:
    if any(bool(block.any()) for block in weights.rows(name)):
        raise UserError(
            f"{weights.folder}: {name} is not zero. Biases at the output of attention (attention_bias on o_proj) are a "
            "part that this toolkit's model does not have, and without them it would be another model.\n"
            "Take a model without them."
        )
