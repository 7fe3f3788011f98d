"""Parameters of a model by name, with their axes: the basis of counting, tensor parallelism and growth.

Every family's parameters are named as in Hugging Face's Llama; a test compares the names with the module's.
"""

from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Literal

from toolkit.core.errors import SettingsError
from toolkit.model.config import ModelSettings
from toolkit.model.families import family_of

Axis = Literal["V", "D", "F", "P", "HE", "KE", "E"]
"""Dimension of a parameter: vocabulary, widths of model, feed-forward and head, query and key-value heads, one head."""

Axes = dict[str, tuple[Axis, ...]]
"""Axes of each parameter, by name."""

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Names of the two matrices that are one if a model ties them."""
HEAD_BIAS = "lm_head.bias"
BLOCKS = "model.layers"


@dataclass(frozen=True)
class ParameterCounts:
    """Parameter counts of a model, by part."""

    embedding: int
    """V x D; the head's matrix has the same size."""
    layer: int
    """Parameters of the last block."""
    body: int
    """All blocks, the final norm, and the embedding's norm if there is one."""
    body_and_embedding: int
    """Parameters counted in a model's nominal size."""
    transform: int
    """Parameters between the body and the head's matrix."""
    total: int
    """Every parameter; a tied head is not counted twice."""


def before_blocks(settings: ModelSettings) -> Axes:
    """Parameters of the embedding."""
    axes: Axes = {EMBEDDING: ("V", "D")}
    if family_of(settings).has_embedding_norm:
        axes["model.embed_norm.weight"] = ("D",)
    return axes


def of_block(settings: ModelSettings, number: int) -> Axes:
    """Parameters of block `number`."""
    axes: Axes = {
        "input_layernorm.weight": ("D",),
        "self_attn.q_proj.weight": ("HE", "D"),
        "self_attn.k_proj.weight": ("KE", "D"),
        "self_attn.v_proj.weight": ("KE", "D"),
        "self_attn.o_proj.weight": ("D", "HE"),
        "post_attention_layernorm.weight": ("D",),
        "mlp.gate_proj.weight": ("F", "D"),
        "mlp.up_proj.weight": ("F", "D"),
        "mlp.down_proj.weight": ("D", "F"),
    }
    if number == 0 and family_of(settings).has_embedding_norm:
        del axes["input_layernorm.weight"]
    if settings.qkv_bias:
        axes |= {"self_attn.q_proj.bias": ("HE",), "self_attn.k_proj.bias": ("KE",), "self_attn.v_proj.bias": ("KE",)}
    if settings.qk_norm:
        axes |= {"self_attn.q_norm.weight": ("E",), "self_attn.k_norm.weight": ("E",)}
    return {f"{BLOCKS}.{number}.{name}": of for name, of in axes.items()}


def after_blocks(settings: ModelSettings) -> Axes:
    """Parameters of the final norm and the head; a tied matrix is left to the embedding."""
    axes: Axes = {"model.norm.weight": ("D",)}
    family = family_of(settings)
    if family.transform == "dense":
        axes |= {"head.dense.weight": ("D", "D"), "head.norm.weight": ("D",)}
    elif family.transform == "two products":
        axes |= {"head.linear1.weight": ("P", "D"), "head.linear2.weight": ("D", "P")}
    if family.has_head_bias:
        axes[HEAD_BIAS] = ("V",)
    if not settings.tie_word_embeddings:
        axes[HEAD] = ("V", "D")
    return axes


def parameter_axes(settings: ModelSettings) -> Axes:
    """Axes of every parameter, by name; a tied head is listed as the embedding."""
    blocks = (of_block(settings, number).items() for number in range(settings.num_hidden_layers))
    return dict(chain(before_blocks(settings).items(), *blocks, after_blocks(settings).items()))


def shape_of(axes: tuple[Axis, ...], settings: ModelSettings) -> tuple[int, ...]:
    """Shape of a parameter; the settings must have their vocabulary size."""
    if settings.vocab_size is None:
        raise SettingsError("model.vocab_size is not known, so parameters cannot be counted. Give it a number.")
    sizes: dict[Axis, int] = {
        "V": settings.vocab_size,
        "D": settings.hidden_size,
        "F": settings.intermediate_size,
        "P": settings.prediction_head_size,
        "HE": settings.num_attention_heads * settings.head_size,
        "KE": settings.key_value_heads * settings.head_size,
        "E": settings.head_size,
    }
    return tuple(sizes[axis] for axis in axes)


def parameter_counts(settings: ModelSettings) -> ParameterCounts:
    """Count the parameters of a model without building it; the settings must have their vocabulary size."""

    def count(axes: Axes) -> int:
        return sum(prod(shape_of(of, settings)) for of in axes.values())

    before, after = before_blocks(settings), after_blocks(settings)
    embedding = count({EMBEDDING: before.pop(EMBEDDING)})
    # All blocks but the first are alike.
    others = settings.num_hidden_layers - 1
    layer = count(of_block(settings, others))
    body = (
        count(before) + count(of_block(settings, 0)) + others * layer + count({"norm": after.pop("model.norm.weight")})
    )
    head = embedding if after.pop(HEAD, None) else 0
    transform = count(after)
    return ParameterCounts(embedding, layer, body, body + embedding, transform, body + embedding + transform + head)
