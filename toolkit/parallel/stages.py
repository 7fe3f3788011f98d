"""Pipeline parallelism: a finished encoder is cut into stages of neighbouring blocks.

The first stage has the embedding too, the last one the final norm, the head and the loss. Only hidden states (T, D) go
from stage to stage: whatever else a block reads (segments, attention kind, targets), each stage gets from its own
process, which builds the same micro-batches in the same order.

Which blocks a stage has: `toolkit.parallel.division`.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from toolkit.model.config import LayerType, ModelSettings
from toolkit.model.encoder import Encoder, ForwardContext


class Stage(nn.Module):
    """Some blocks of an encoder, with what comes before the first and after the last one.

    Parameters keep their names. With tied weights the last stage has the embedding too, as its head's weight. The
    encoder is usually on the meta device; those of its modules that belong here are taken over.
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
        """Copy of the weight, or share of it, in this stage, that embedding and head have in common."""
        return self.get_parameter("model.embed_tokens.weight")

    def set_rope(self, settings: ModelSettings) -> None:
        """See `Encoder.set_rope`."""
        self.settings = settings

    def expect(self, coming: Iterator[tuple[dict[LayerType, ForwardContext], Tensor, Tensor | None]]) -> None:
        """Take contexts, labels and weights (N,) of the next forward passes from here, in the order of the
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
    """Gives the parameters of a stage the names that they have in the encoder."""

    embed_tokens: nn.Module
    embed_norm: nn.Module
    layers: nn.ModuleDict
    norm: nn.Module
