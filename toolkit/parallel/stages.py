"""Pipeline parallelism: a finished encoder is cut into stages of neighbouring blocks.

The first stage has the embedding too, the last one the final norm, the head and the loss. Only hidden states (T, D) go
from stage to stage: whatever else a block reads (segments, attention kind, targets), each stage is told by its own
process, which builds the same micro-batches in the same order.

The last stage costs more than its blocks. By model FLOPs the head is worth V x D x (targets per position) / (parameters
of a block) blocks: with 128,256 tokens, 2.6 in the preset `1b` where 40 % of the positions are targets, and 10.4 in
`210m` where all are. So stages differ in their number of blocks.

Shapes: T positions in a micro-batch, D model width, V vocabulary, N target tokens.
"""

from collections.abc import Iterator
from itertools import accumulate

from torch import Tensor, nn

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder, ForwardContext
from toolkit.model.presets import parameter_counts
from toolkit.parallel.topology import ParallelSettings


def check_pipeline_parallel(settings: ModelSettings, parallel: ParallelSettings) -> None:
    """Check that the blocks of a model of this shape can be divided into the stages that are asked for.

    Raises:
        SettingsError: more stages than blocks, or `parallel.stages` does not fit the model or `parallel.pp`.
    """
    layers, pp, stages = settings.num_hidden_layers, parallel.pp, parallel.stages
    if pp > layers:
        raise SettingsError(
            f"pipeline parallelism (parallel.pp={pp}) needs a block for each stage, but the model has "
            f"{counted(layers, 'block')} (model.num_hidden_layers={layers}).\n"
            f"Set parallel.pp to at most {layers}, or make the model deeper."
        )
    if stages is None:
        return
    if len(stages) != pp:
        raise SettingsError(
            f"parallel.stages={list(stages)} gives the blocks of {counted(len(stages), 'stage')}, but "
            f"parallel.pp={pp}.\nSet parallel.pp={len(stages)}, or leave parallel.stages out: stages are then balanced."
        )
    if sum(stages) != layers:
        raise SettingsError(
            f"parallel.stages={list(stages)} adds up to {counted(sum(stages), 'block')}, but the model has {layers} "
            f"(model.num_hidden_layers={layers}).\n"
            "Change one of the two, or leave parallel.stages out: stages are then balanced."
        )


def head_in_blocks(settings: ModelSettings, *, targets_per_position: float) -> float:
    """How many blocks the head and the loss are worth, by model FLOPs without those of attention.

    Args:
        settings: the shape, with its vocabulary size.
        targets_per_position: 1 where every position is a target.
    """
    counts = parameter_counts(settings)
    return counts.embedding * targets_per_position / counts.layer


def balanced_stages(num_blocks: int, pp: int, *, last_stage_extra: float) -> tuple[int, ...]:
    """Blocks of each of `pp` stages so that the slowest takes least; each has at least one.

    Of stages that differ by one block, the later have more: a stage keeps activations of one micro-batch more than the
    next one.

    Args:
        num_blocks: of the model, at least `pp`.
        pp: stages.
        last_stage_extra: what the last stage does besides its blocks, in blocks.
    """
    if pp == 1:
        return (num_blocks,)

    def slowest(last: int) -> float:
        return max(last + last_stage_extra, -(-(num_blocks - last) // (pp - 1)))

    last = min(range(num_blocks - pp + 1, 0, -1), key=slowest)
    share, left = divmod(num_blocks - last, pp - 1)
    return (*(share + (stage >= pp - 1 - left) for stage in range(pp - 1)), last)


def stage_blocks(settings: ModelSettings, parallel: ParallelSettings, *, targets_per_position: float) -> list[range]:
    """The numbers of the blocks of each stage: as `parallel.stages` says, else balanced.

    Args:
        settings: the shape, with its vocabulary size.
        parallel: that `check_pipeline_parallel` accepts.
        targets_per_position: of the run, in the mean.
    """
    sizes = parallel.stages or balanced_stages(
        settings.num_hidden_layers,
        parallel.pp,
        last_stage_extra=head_in_blocks(settings, targets_per_position=targets_per_position),
    )
    stops = list(accumulate(sizes))
    return [range(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


class Stage(nn.Module):
    """Some blocks of an encoder, with what comes before the first and after the last one.

    Parameters keep their names. With tied weights the last stage has the embedding too, as its head's weight.

    Args:
        encoder: usually on the meta device; those of its modules that belong here are taken over.
        blocks: their numbers, in order.
    """

    def __init__(self, encoder: Encoder, blocks: range) -> None:
        super().__init__()
        self.settings = encoder.settings
        self.is_first = blocks.start == 0
        self.is_last = blocks.stop == self.settings.num_hidden_layers
        self._coming: Iterator[tuple[ForwardContext, Tensor]] = iter(())
        self.model = _StageBody()
        if self.is_first or (self.is_last and self.settings.tie_word_embeddings):
            self.model.embed_tokens = encoder.model.embed_tokens
        self.model.layers = nn.ModuleDict({str(number): encoder.model.layers[number] for number in blocks})
        if self.is_last:
            self.model.norm = encoder.model.norm
            self.lm_head = encoder.lm_head

    @property
    def tied_weight(self) -> nn.Parameter:
        """This stage's copy of the weight, or share of it, that embedding and head have in common."""
        return self.get_parameter("model.embed_tokens.weight")

    def set_rope(self, settings: ModelSettings) -> None:
        """See `Encoder.set_rope`."""
        self.settings = settings

    def expect(self, coming: Iterator[tuple[ForwardContext, Tensor]]) -> None:
        """Take contexts and labels (N,) of the next forward passes from here, in the order of the micro-batches."""
        self._coming = coming

    def forward(self, input: Tensor) -> Tensor:
        """Token ids (B, S) in the first stage, hidden states (T, D) in others -> hidden states (T, D).

        In the last stage -> the sum of the cross-entropies at the targets, 0-dim.
        """
        context, labels_N = next(self._coming)
        hidden: Tensor = self.model.embed_tokens(input.flatten()) if self.is_first else input
        for layer in self.model.layers.values():
            hidden = layer(hidden, context)
        if self.is_last:
            hidden = self.lm_head(self.model.norm(hidden), labels_N)
        return hidden


class _StageBody(nn.Module):
    """Gives the parameters of a stage the names that they have in the encoder."""

    embed_tokens: nn.Module
    layers: nn.ModuleDict
    norm: nn.Module
