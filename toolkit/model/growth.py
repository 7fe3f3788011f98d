"""Weights of a larger model, tiled from a smaller one, as for ModernBERT-large (arXiv 2412.13663, 2.2).

Along each dimension that grows, the smaller matrix is centered and repeated to both sides; heads are tiled whole,
groups of query heads with the key-value head they share. Layer i of L' is layer round(i L / L') of L, after Gopher.
"""

from typing import TYPE_CHECKING

from toolkit.core.text import counted
from toolkit.model.config import ModelSettings
from toolkit.model.families import family_of
from toolkit.model.parameters import BLOCKS, Axis, after_blocks, parameter_axes

if TYPE_CHECKING:
    from torch import Tensor

GROWING = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "prediction_head_size",
)
"""Keys of `[model]` that may be larger in the larger model."""
_WIDTHS: dict[Axis, str] = {"D": "hidden_size", "F": "intermediate_size", "P": "prediction_head_size"}


class Growth:
    """Rule that makes the parameters of a larger model from those of a smaller one."""

    def __init__(self, small: ModelSettings, large: ModelSettings) -> None:
        self.small, self.large = small, large
        self._axes = parameter_axes(large)

    @property
    def layers(self) -> list[int]:
        """For each layer of the large model, the layer of the small model that it starts from."""
        last, ratio = self.small.num_hidden_layers - 1, self.small.num_hidden_layers / self.large.num_hidden_layers
        # With an embedding norm, the first block has no norm before its attention: other blocks cannot start from it.
        first = min(last, 1) if family_of(self.small).has_embedding_norm else 0
        return [
            min(last, max(round(number * ratio), first if number else 0))
            for number in range(self.large.num_hidden_layers)
        ]

    def problem(self) -> str | None:
        """Why the large shape cannot be tiled from the small one; None if it can."""
        small, large = self.small, self.large
        if large.family != small.family:
            return f"the model is of the family {small.family} there, and of {large.family} here"
        before, after = _sizes(small), _sizes(large)
        shrinking = [key for key in GROWING if after[key] < before[key]]
        if shrinking:
            return f"{', '.join(shrinking)} would shrink"
        if large.head_size != small.head_size:
            return f"a head is {small.head_size} wide there and {large.head_size} here, and heads are tiled whole"
        if small.num_hidden_layers == 1 < large.num_hidden_layers and family_of(small).has_embedding_norm:
            return "its only block there has no norm before its attention, which other blocks have"
        if _group(large) < _group(small):
            return f"{_group(small)} query heads share a key-value head there, and {_group(large)} here"
        return None

    def describe(self) -> str:
        """One-clause description of the growth."""
        return f"tiled from {shape_in_words(self.small)} to {shape_in_words(self.large)}, layers {self.layers}"

    def source(self, name: str) -> str:
        """Name of the small model's parameter from which the large model's is made; both are Hugging Face names."""
        if not name.startswith(f"{BLOCKS}."):
            return name
        number, _, rest = name.removeprefix(f"{BLOCKS}.").partition(".")
        return f"{BLOCKS}.{self.layers[int(number)]}.{rest}"

    def tile(self, name: str, weight: "Tensor") -> "Tensor":
        """Make the large model's parameter `name` from `weight`, the small model's parameter `source(name)`."""
        small, large = self.small, self.large
        for dimension, axis in enumerate(self._axes[name]):
            if axis in _WIDTHS:
                index = _middle(getattr(small, _WIDTHS[axis]), getattr(large, _WIDTHS[axis]))
            elif axis == "HE":
                index = self._heads(_group(small), _group(large))
            elif axis == "KE":
                index = self._heads(1, 1)
            else:  # V and E never grow
                continue
            weight = weight.index_select(dimension, index)
        return weight

    def _heads(self, small_group: int, large_group: int) -> "Tensor":
        """Source of each row of K x group heads, E rows per head."""
        import torch

        shared = _middle(self.small.key_value_heads, self.large.key_value_heads)
        within, size = _middle(small_group, large_group), self.small.head_size
        heads = (shared[:, None] * small_group + within).flatten()
        return (heads[:, None] * size + torch.arange(size)).flatten()


def shape_in_words(settings: ModelSettings) -> str:
    """Description of the sizes that can grow."""
    layers = counted(settings.num_hidden_layers, "layer")
    has_width = any("P" in axes for axes in after_blocks(settings).values())
    head = f", a head of width {settings.prediction_head_size}" if has_width else ""
    return (
        f"{layers} of width {settings.hidden_size} and {settings.intermediate_size}, "
        f"{settings.num_attention_heads} heads ({settings.key_value_heads} of keys){head}"
    )


def _sizes(settings: ModelSettings) -> dict[str, int]:
    """Sizes by the keys of `GROWING`, with the default filled in."""
    return {key: getattr(settings, key) for key in GROWING} | {"num_key_value_heads": settings.key_value_heads}


def _group(settings: ModelSettings) -> int:
    return settings.num_attention_heads // settings.key_value_heads


def _middle(small: int, large: int) -> "Tensor":
    """Source of each of `large` indices, if `small` ones are centered and repeated to both sides."""
    import torch

    return (torch.arange(large) - (large - small) // 2) % small
