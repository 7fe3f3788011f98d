"""Model settings: the shape, and the names of activation checkpointing modes and attention kernels."""

from itertools import chain
from typing import Literal

from pydantic import Field, model_validator

from toolkit.core.settings import Settings
from toolkit.core.types import AttentionKind

ActivationCheckpointing = Literal["none", "selective", "full"]
"""What the backward pass of a block recomputes: nothing, all but matrix products, or everything."""

AttentionKernel = Literal["flash3", "flash4", "flash2", "sdpa"]
"""Attention kernels: FlashAttention-3, 4 or torch's 2 on a GPU; plain torch on any device."""


_HEADS = ("num_key_value_heads", "head_dim", "qkv_bias")
_WINDOWS = ("local_attention", "global_attn_every_n_layers", "local_rope_theta")
# Settings that only some families have, by family.
_OF_SOME_FAMILIES = {
    "llama": (*_HEADS, "qk_norm", "rope_scaling"),
    "modernbert": _WINDOWS,
    "ultrabert": (*_HEADS, *_WINDOWS, "prediction_head_size"),
}

LayerType = Literal["full_attention", "sliding_attention"]
"""Reach of a layer's attention: the segment, or a window of it. Names as in transformers."""


class RopeScaling(Settings):
    """Stretching of rotary angles for segments longer than the first training saw. Names as in transformers."""

    rope_type: Literal["linear", "llama3"]
    """`linear` divides all frequencies; `llama3` keeps high ones and divides low ones, blended between."""
    factor: float = Field(ge=1)
    """Divisor of the frequencies."""
    low_freq_factor: float = Field(default=1.0, gt=0)
    """For `llama3`: wavelengths above the original length / this are divided."""
    high_freq_factor: float = Field(default=4.0, gt=0)
    """For `llama3`: wavelengths below the original length / this are kept."""
    original_max_position_embeddings: int = Field(default=8192, ge=1)
    """For `llama3`: context length of the original training."""

    @model_validator(mode="after")
    def _check_band(self) -> "RopeScaling":
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} is not above low_freq_factor={self.low_freq_factor}. "
                "Between the two lies the band of frequencies that are blended."
            )
        return self


def padded_vocabulary(num_tokens: int) -> int:
    """Vocabulary size for `num_tokens`, rounded up for tensor cores. Ids beyond the tokenizer's are never targets."""
    return -(-num_tokens // 64) * 64


def layer_types(family: str, num_layers: int, every: int) -> tuple[LayerType, ...]:
    """Types of all layers if one of each `every` has full attention: the first in ModernBERT, UltraBERT's last."""
    full = every - 1 if family == "ultrabert" else 0
    return tuple("full_attention" if number % every == full else "sliding_attention" for number in range(num_layers))


class ModelSettings(Settings):
    """The shape of an encoder. The names are those of Hugging Face configurations: Llama, EuroBERT or ModernBERT."""

    family: Literal["llama", "modernbert", "ultrabert"] = "llama"
    """Architecture of blocks and head; EuroBERT is `llama`."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Entries of embedding and head. Unset: the tokenizer's, with its mask token, rounded up to a multiple of 64."""
    hidden_size: int = Field(ge=1)
    """D, model width."""
    intermediate_size: int = Field(ge=1)
    """F, feed-forward width."""
    num_hidden_layers: int = Field(ge=1)
    """Number of blocks."""
    num_attention_heads: int = Field(ge=1)
    """H, query heads."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """K, key and value heads. Unset: H."""
    head_dim: int | None = Field(default=None, ge=1)
    """E, width of one head. Unset: hidden_size / num_attention_heads."""
    qkv_bias: bool = False
    """Bias in query, key and value projections, as in Qwen2."""
    qk_norm: bool = False
    """RMSNorm of each head's queries and keys before RoPE, as in Qwen3."""
    tie_word_embeddings: bool = False
    """One matrix for embedding and head."""
    rms_norm_eps: float = Field(default=1e-5, gt=0)
    """Epsilon of RMSNorm and LayerNorm; ModernBERT's `norm_eps`."""
    local_attention: int = Field(default=128, ge=2)
    """Window of sliding layers (ModernBERT, UltraBERT), half of it to each side."""
    global_attn_every_n_layers: int = Field(default=3, ge=1)
    """Every n-th layer has full attention: the first of each group in ModernBERT, the last in UltraBERT."""
    prediction_head_size: int = Field(default=768, ge=1)
    """P, inner width of UltraBERT's head."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary embedding."""
    local_rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary embedding in sliding layers."""
    rope_scaling: RopeScaling | None = None
    """A table that stretches the rotary angles, as in Llama 3.1 and later. Not given: they stay as they are."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; norms start at 1."""
    max_position_embeddings: int = Field(default=2048, ge=1)
    """Maximum segment length; written into exported configurations."""

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelSettings":
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}. "
                f"Change one so that every head has the same width, or give head_dim."
            )
        if self.head_size % 2:
            raise ValueError(
                f"a head is {'hidden_size / num_attention_heads' if self.head_dim is None else 'head_dim'} = "
                f"{self.head_size} wide; "
                "rotary positions turn pairs of numbers and need an even width."
            )
        if self.num_attention_heads % self.key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.key_value_heads}. Each key-value head serves equally many query heads."
            )
        return self

    @model_validator(mode="after")
    def _check_family(self) -> "ModelSettings":
        own = _OF_SOME_FAMILIES[self.family]
        for key in chain.from_iterable(_OF_SOME_FAMILIES.values()):
            if key not in own and (value := getattr(self, key)) != type(self).model_fields[key].default:
                given = value.model_dump() if isinstance(value, Settings) else value
                raise ValueError(
                    f"{key}={given!r} is not for models of the family {self.family!r}. "
                    "Leave it out, or take a preset of that family."
                )
        return self

    @property
    def layer_types(self) -> tuple[LayerType, ...]:
        """Attention type of each layer."""
        every = 1 if self.family == "llama" else self.global_attn_every_n_layers
        return layer_types(self.family, self.num_hidden_layers, every)

    def window(self, layer_type: LayerType, kind: AttentionKind) -> int | None:
        """Number of positions visible on each side in layers of a type; None: the whole segment.

        Half of `local_attention`, which under causal attention includes the position itself, as in the masks of
        transformers.
        """
        if layer_type == "full_attention":
            return None
        half = self.local_attention // 2
        return half - 1 if kind is AttentionKind.CAUSAL else half

    @property
    def narrowest_window(self) -> int | None:
        """The smallest `window` of this model's layers under both attention kinds; None if no layer has one."""
        windows = [self.window(each, kind) for each in self.layer_types for kind in AttentionKind]
        return min((each for each in windows if each is not None), default=None)

    def rope_base(self, layer_type: LayerType) -> float:
        """Base of the rotary angles in layers of a type."""
        return self.local_rope_theta if layer_type == "sliding_attention" else self.rope_theta

    @property
    def head_size(self) -> int:
        """E, the width of one head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def key_value_heads(self) -> int:
        """K, with the default filled in."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
