"""The whole model: token ids and segments in, one scaled sum of cross-entropies out.

Pre-norm blocks of grouped-query attention with rotary positions and a gated feed-forward, no biases. Other parts depend
on the family (`toolkit.model.families`): those of Llama and EuroBERT, or ModernBERT's norms, activation, head, and
sliding-window layers, which UltraBERT combines with its own head; and options of other decoders: biases of query, key
and value, norms of query and key heads, stretched rotary angles. Parameters are named as in Hugging Face's Llama. Rows
are packed with segments, so everything between embedding and head works on the T = B x S positions of a micro-batch as
one list. Weights may be fp32 or bf16; norms, rotary angles and the loss are computed in fp32 either way.

Only hidden states pass from block to block; a block's other inputs are a `ForwardContext`, which a pipeline stage can
make for itself. The last block computes only positions with a target, and has a class of its own.

Each parameter is used only inside the forward of the module that owns it, and the loss is computed inside
`Encoder.forward`: an engine that releases weights between modules (ZeRO-3) needs both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind
from toolkit.model.attention import MixedAttention, SegmentAttention, attention_over
from toolkit.model.config import LayerType, ModelSettings
from toolkit.model.families import family_of
from toolkit.model.head import Head, transform_of
from toolkit.model.kernels.flash import BlockKernel
from toolkit.model.layers import (
    Embedding,
    Linear,
    Products,
    RMSNorm,
    RopeCosSin,
    apply_rope,
    norm_of,
    rope_cos_sin,
    separate_products,
)
from toolkit.model.segments import MixedRows, SegmentLayout

# By `Family.activation`.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu}


class Encoder(nn.Module):
    """A masked or causal language model over packed segments; an argument of `forward` says which.

    Weights are not initialized: use `initialize_` (`toolkit.model.initialization`), or load weights.

    Raises:
        SettingsError: `settings.vocab_size` is None.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        if settings.vocab_size is None:
            raise SettingsError("model.vocab_size is not known. Give it a number, or take the tokenizer's size.")
        self.settings = settings
        self.model = Body(settings, settings.vocab_size)
        self.head = transform_of(settings)
        self.lm_head = Head(settings, settings.vocab_size)
        if settings.tie_word_embeddings:
            self.model.embed_tokens.weight = self.lm_head.weight

    def forward(
        self,
        input_ids_BS: Tensor,
        segments_BS: Tensor | SegmentLayout,
        attention: AttentionKind | MixedRows,
        *,
        positions_N: Tensor,
        labels_N: Tensor,
        scale: float | Tensor,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """The loss: `scale` x the sum of the cross-entropies at the targets, a 0-dim fp32 tensor.

        Args:
            input_ids_BS: (B, S) int64.
            segments_BS: (B, S), 0 is padding; or their layout, made beforehand, which avoids waiting for a GPU. If
                it has targets, they must be those at `positions_N`.
            attention: the kind of all rows, or the layouts of the rows of each kind.
            positions_N: (N,) int64, flat positions in the micro-batch (row * S + column). N = 0 is legal: the loss
                is 0 and every gradient is zero.
            labels_N: (N,) int64, the target ids; negative ones are ignored.
            scale: a number, or a 0-dim tensor.
            weights_N: (N,) fp32, the factor of each cross-entropy in the sum; None: 1.
        """
        hidden_ND = self.head(self.model(input_ids_BS, segments_BS, attention, positions_N))
        loss: Tensor = self.lm_head(hidden_ND, labels_N, weights_N)
        return loss * scale

    def set_rope(self, settings: ModelSettings) -> None:
        """Use the rotary settings of `settings` from now on; its other fields must equal the encoder's."""
        self.settings = self.model.settings = settings

    def logits(
        self,
        input_ids_BS: Tensor,
        segments_BS: Tensor | SegmentLayout,
        attention: AttentionKind,
        *,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """Logits at `positions_N`, by default everywhere: (N, V) fp32. Not for use under ZeRO-3."""
        hidden_ND = self.head(self.model(input_ids_BS, segments_BS, attention, positions_N))
        return self.lm_head.logits(hidden_ND)


class Body(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        # No padding index: the padding token is often also the end-of-text token, whose row must be trained.
        self.embed_tokens = Embedding(vocab_size, settings.hidden_size)
        self.embed_norm = norm_of(settings) if family_of(settings).has_embedding_norm else nn.Identity()
        last = settings.num_hidden_layers - 1
        self.layers = nn.ModuleList([*(Block(settings, number) for number in range(last)), LastBlock(settings, last)])
        self.norm = norm_of(settings)

    def forward(
        self,
        input_ids_BS: Tensor,
        segments_BS: Tensor | SegmentLayout,
        attention: AttentionKind | MixedRows,
        positions_N: Tensor | None,
    ) -> Tensor:
        """Hidden states after the final norm at `positions_N`, (N, D); at all T positions if None."""
        layout = segments_BS if isinstance(segments_BS, SegmentLayout) else SegmentLayout.from_segments(segments_BS)
        contexts = ForwardContext.by_layer_type(self.settings, layout, attention, positions_N)
        hidden = self.embed_norm(self.embed_tokens(input_ids_BS.flatten()))
        for layer, layer_type in zip(self.layers, self.settings.layer_types, strict=True):
            hidden = layer(hidden, contexts[layer_type])
        normed: Tensor = self.norm(hidden)
        return normed


@dataclass(eq=False)
class ForwardContext:
    """Inputs besides hidden states, in one forward pass, of the blocks of one layer type."""

    rope: RopeCosSin
    attention: SegmentAttention | MixedAttention
    positions_N: Tensor | None
    """Positions whose hidden states are wanted after the last block; None: all T."""

    @classmethod
    def by_layer_type(
        cls,
        settings: ModelSettings,
        layout: SegmentLayout,
        attention: AttentionKind | MixedRows,
        positions_N: Tensor | None,
    ) -> "dict[LayerType, ForwardContext]":
        """The contexts of a micro-batch, by layer type: they depend only on segments, kind and targets."""
        return {
            each: cls(
                rope_cos_sin(
                    layout.rope_positions_T,
                    settings.head_size,
                    theta=settings.rope_base(each),
                    scaling=settings.rope_scaling,
                ),
                attention_over(attention, layout, partial(settings.window, each)),
                positions_N,
            )
            for each in dict.fromkeys(settings.layer_types)
        }


class Block(nn.Module):
    """A layer: attention, then feed-forward, each on a normed copy and added to the residual stream."""

    def __init__(self, settings: ModelSettings, number: int) -> None:
        super().__init__()
        is_normed = number == 0 and family_of(settings).has_embedding_norm
        self.input_layernorm = nn.Identity() if is_normed else norm_of(settings)
        self.self_attn = SelfAttention(settings)
        self.post_attention_layernorm = norm_of(settings)
        self.mlp = FeedForward(settings)

    def forward(self, hidden_TD: Tensor, context: ForwardContext) -> Tensor:
        """(T, D) -> (T, D)."""
        if isinstance(context.attention, MixedAttention):
            # It breaks the graph further down anyway. Checked in each `forward` itself: code that both share, such as a
            # method with this line, would serve rows of one kind too.
            torch._dynamo.graph_break()
        mixed_TD = self.self_attn(self.input_layernorm(hidden_TD), context, None)
        return self.feed_forward(hidden_TD + mixed_TD)

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """The second half: (T, D) -> (T, D)."""
        fed: Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + fed


class LastBlock(Block):
    """A block that continues with only `context.positions_N` after its attention: exact, and cheaper."""

    def forward(self, hidden_TD: Tensor, context: ForwardContext) -> Tensor:
        """(T, D) -> (N, D)."""
        positions_N = context.positions_N
        if isinstance(context.attention, MixedAttention):
            torch._dynamo.graph_break()
        mixed = self.self_attn(self.input_layernorm(hidden_TD), context, positions_N)
        return self.feed_forward((hidden_TD if positions_N is None else hidden_TD[positions_N]) + mixed)


class SelfAttention(nn.Module):
    """Grouped-query attention inside segments."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.head_size = settings.head_size
        query_width = settings.num_attention_heads * settings.head_size
        key_value_width = settings.key_value_heads * settings.head_size
        self.q_proj = Linear(settings.hidden_size, query_width, bias=settings.qkv_bias)
        self.k_proj = Linear(settings.hidden_size, key_value_width, bias=settings.qkv_bias)
        self.v_proj = Linear(settings.hidden_size, key_value_width, bias=settings.qkv_bias)
        self.o_proj = Linear(query_width, settings.hidden_size)
        self.kernel: BlockKernel = "automatic"
        """See `SegmentAttention`."""
        self.products: Products = separate_products
        self.q_norm = RMSNorm(settings.head_size, settings.rms_norm_eps) if settings.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(settings.head_size, settings.rms_norm_eps) if settings.qk_norm else nn.Identity()

    def forward(self, normed_TD: Tensor, context: ForwardContext, positions_N: Tensor | None) -> Tensor:
        """(T, D) -> (T, D); or -> (N, D), only the result at `positions_N`."""
        if positions_N is not None and context.attention.takes_targets(self.kernel):
            return self._at_targets(normed_TD, context, positions_N)
        parts = self.products(normed_TD, (self.q_proj, self.k_proj, self.v_proj))
        query_THE, key_TKE, value_TKE = (self._heads(part) for part in parts)
        query_THE = apply_rope(self.q_norm(query_THE), context.rope)
        key_TKE = apply_rope(self.k_norm(key_TKE), context.rope)
        mixed = context.attention(query_THE, key_TKE, value_TKE, self.kernel).flatten(1)
        projected: Tensor = self.o_proj(mixed if positions_N is None else mixed[positions_N])
        return projected

    def _at_targets(self, normed_TD: Tensor, context: ForwardContext, positions_N: Tensor) -> Tensor:
        """The same (N, D), with queries only at `positions_N`."""
        query_NHE = self._heads(self.q_proj(normed_TD[positions_N]))
        key_TKE, value_TKE = (self._heads(part) for part in self.products(normed_TD, (self.k_proj, self.v_proj)))
        cos, sin = context.rope
        query_NHE = apply_rope(self.q_norm(query_NHE), (cos[positions_N], sin[positions_N]))
        key_TKE = apply_rope(self.k_norm(key_TKE), context.rope)
        mixed_NHE = context.attention(query_NHE, key_TKE, value_TKE, self.kernel, positions_N)
        projected: Tensor = self.o_proj(mixed_NHE.flatten(1))
        return projected

    def _heads(self, part: Tensor) -> Tensor:
        """(T, heads x E) -> (T, heads, E)."""
        return part.view(len(part), part.shape[1] // self.head_size, self.head_size)


class FeedForward(nn.Module):
    """SwiGLU or GeGLU (Shazeer 2020, "GLU Variants Improve Transformer")."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.gate_proj = Linear(settings.hidden_size, settings.intermediate_size)
        self.up_proj = Linear(settings.hidden_size, settings.intermediate_size)
        self.down_proj = Linear(settings.intermediate_size, settings.hidden_size)
        self.products: Products = separate_products
        self.activation = _ACTIVATIONS[family_of(settings).activation]

    def forward(self, normed_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        gate_TF, up_TF = self.products(normed_TD, (self.gate_proj, self.up_proj))
        fed: Tensor = self.down_proj(self.activation(gate_TF) * up_TF)
        return fed
