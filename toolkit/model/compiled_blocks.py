"""Blocks and loss through torch.compile: which functions are compiled, and what the compiler is told."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toolkit.model.attention import SegmentAttention
from toolkit.model.kernels.cross_entropy_forms import Compiled, VocabularyColumns

if TYPE_CHECKING:
    from toolkit.model.encoder import Encoder, ForwardContext

# Graphs of one function, beyond which it runs uncompiled for good: blocks of three types (ModernBERT's first, which has
# no norm, and one for each reach), two kinds, with gradients and without, for each shape of a micro-batch, of which
# phases with rows of other lengths have several; and of rows of both kinds. Torch's own is 8.
_MOST_GRAPHS = 64


def compile_blocks_(encoder: "Encoder") -> None:
    """Compile each block by itself, and the loss, in place; names stay. The first step then takes many seconds longer.

    One graph, with one for its backward pass, serves all blocks of one type but the last, one that one; each for one
    attention kind and any layout and number of targets. Where attention has no kernel for the compiler, graphs end
    before and after it and serve both kinds, whatever the reach.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    *others, last = encoder.model.layers
    for layer in encoder.model.layers:
        layer.register_forward_pre_hook(_mark_dynamic)
    # The forward method and not the module: what is put around it later (activation checkpointing, hooks) stays outside
    # of the graph.
    for layer in others:
        layer.forward = torch.compile(layer.forward, dynamic=False, options=_compiler_options())
    last.forward = torch.compile(last.forward, options=_compiler_options())
    # Ranks that share a vocabulary exchange numbers in the middle of it.
    if type(encoder.lm_head.columns) is VocabularyColumns:
        encoder.lm_head.form = Compiled()


def _compiler_options() -> dict[str, Any]:
    """Each part of a `cat` is written to its place by what makes it: behind masks, joined products' gradients would be
    read once for every part. Older versions of torch know the first option alone.
    """
    from torch._inductor import config

    names = ("max_pointwise_cat_inputs", "max_complex_pointwise_cat_inputs")
    return {name: 1 for name in names if hasattr(config, name)}


def _mark_dynamic(_: nn.Module, arguments: "tuple[Tensor, ForwardContext]") -> None:
    """Say what differs between micro-batches of one shape: how many stretches they have, and how many targets."""
    context = arguments[1]
    if isinstance(context.attention, SegmentAttention):
        layout = context.attention.layout
        torch._dynamo.maybe_mark_dynamic(layout.bounds_M, 0)
        if layout.targets is not None:
            torch._dynamo.maybe_mark_dynamic(layout.targets.bounds_M, 0)
    if context.positions_N is not None:
        torch._dynamo.maybe_mark_dynamic(context.positions_N, 0)
