"""Pipeline parallelism: a whole encoder is cut into stages of consecutive blocks.

The first stage also has the embedding, the last one the final norm, the head and the loss. Only hidden states (T, D)
are sent from stage to stage: a block's other inputs (segments, attention kind, targets) come from the stage's own
process, which builds the same micro-batches in the same order.

Division of the blocks: `toolkit.parallel.division`.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from toolkit.model.config import LayerType, ModelSettings
from toolkit.model.encoder import Encoder, ForwardContext


class Stage(nn.Module):
    """Some blocks of an encoder, with the modules before its first and after its last block.

    Parameters keep their names. With tied weights, the last stage also has the embedding, as its head's weight. The
    encoder is usually on the meta device; the stage takes over its own modules.
    """

    def __init__(self, encoder: Encoder, blocks: range) -> None:
        super().__init__()
        self.settings = encoder.settings
        self.is_first = blocks.start == 0
        self.is_last = blocks.stop == self.settings.num_hidden_layers
        self._coming: Iterator[tuple[dict[LayerType, ForwardContext], Tensor, Tensor | None]] = iter(())
        self.model = _StageBody()
        if self.is_first or (self.is_last and self.settings.tie_word_embeddings):
            self.model.embed_tokens = encoder.model.embed_tokens
        if self.is_first:
            self.model.embed_norm = encoder.model.embed_norm
        self.model.layers = nn.ModuleDict({str(number): encoder.model.layers[number] for number in blocks})
        if self.is_last:
            self.model.norm = encoder.model.norm
            self.head = encoder.head
            self.lm_head = encoder.lm_head

    @property
    def tied_weight(self) -> nn.Parameter:
        """This stage's copy, or share, of the weight that embedding and head have in common."""
        return self.get_parameter("model.embed_tokens.weight")

    def set_rope(self, settings: ModelSettings) -> None:
        """See `Encoder.set_rope`."""
        self.settings = settings

    def expect(self, coming: Iterator[tuple[dict[LayerType, ForwardContext], Tensor, Tensor | None]]) -> None:
        """Set the source of contexts, labels and weights (N,) of the next forward passes, in the order of the
        micro-batches.
        """
        self._coming = coming

    def forward(self, input: Tensor) -> Tensor:
        """Token ids (B, S) in the first stage, hidden states (T, D) in others -> hidden states (T, D).

        In the last stage -> the sum of the cross-entropies at the targets, 0-dim.
        """
        contexts, labels_N, weights_N = next(self._coming)
        hidden: Tensor = self.model.embed_norm(self.model.embed_tokens(input.flatten())) if self.is_first else input
        layer_types = self.settings.layer_types
        for number, layer in self.model.layers.items():
            hidden = layer(hidden, contexts[layer_types[int(number)]])
        if self.is_last:
            hidden = self.lm_head(self.head(self.model.norm(hidden)), labels_N, weights_N)
        return hidden


class _StageBody(nn.Module):
    """Container that gives the parameters of a stage their names in the encoder."""

    embed_tokens: nn.Module
    embed_norm: nn.Module
    layers: nn.ModuleDict
    norm: nn.Module
