"""Blocks and loss under torch.compile: which functions are compiled, and with which options."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from toolkit.core.text import root_cause
from toolkit.core.types import AttentionKind
from toolkit.model.attention import SegmentAttention
from toolkit.model.config import ModelSettings
from toolkit.model.kernels.cross_entropy_forms import Compiled, VocabularyColumns
from toolkit.model.segments import SegmentLayout

if TYPE_CHECKING:
    from toolkit.model.encoder import Encoder, ForwardContext
    from toolkit.model.kernels.choice import Kernels

# Limit of graphs per function, beyond which it runs uncompiled for good: three types of blocks (ModernBERT's first,
# which has no norm, and one per layer type), two attention kinds, with and without gradients, for each micro-batch
# shape (several if phases differ in row length); and rows of both kinds. torch's default is 8.
_MOST_GRAPHS = 64

_TRIED_SHAPE = (2, 64)
_TRIED_VOCABULARY = 512
# Largest |difference| / |gradient| between compiled and eager code. Both round in bf16; a gradient that the compiler
# drops differs by its whole norm.
_LARGEST_DIFFERENCE = 0.1


def reason_against_compiling(
    settings: ModelSettings, kernels: "Kernels", *, device: torch.device, dtype: torch.dtype
) -> str | None:
    """Why a block of the model's widths or the loss does not compile here, or differs from eager code in its gradients.

    None if they compile and gradients agree. Leaves nothing behind but files in the compiler's cache.
    """
    from toolkit.model.encoder import Encoder
    from toolkit.model.initialization import initialize_

    # One block with full attention, one with a window; ModernBERT's first, a full one, has no norm before attention.
    layers = 1 if settings.narrowest_window is None else 2
    shape = {"num_hidden_layers": layers, "global_attn_every_n_layers": layers}
    shape |= {"vocab_size": _TRIED_VOCABULARY, "tie_word_embeddings": False}
    with torch.device("meta"):
        encoder = Encoder(settings.model_copy(update=shape))
    encoder.to_empty(device=device)
    initialize_(encoder, 0)
    kernels.apply_(encoder.to(dtype))
    ids_BS = torch.randint(_TRIED_VOCABULARY, _TRIED_SHAPE, generator=torch.Generator().manual_seed(0)).to(device)
    some_N = np.arange(0, ids_BS.numel(), 2)
    layout = SegmentLayout.from_segments(np.ones(_TRIED_SHAPE, np.int64), device=device, positions_N=some_N)
    positions_N, kind = torch.as_tensor(some_N, device=device), AttentionKind.BIDIRECTIONAL
    matrices = {name: each for name, each in encoder.named_parameters() if each.dim() > 1}

    def gradients() -> tuple[Tensor, ...]:
        targets = {"positions_N": positions_N, "labels_N": ids_BS.flatten()[positions_N]}
        return torch.autograd.grad(encoder(ids_BS, layout, kind, **targets, scale=1.0), list(matrices.values()))

    try:
        eager = gradients()
        compile_blocks_(encoder)
        for name, ours, theirs in zip(matrices, gradients(), eager, strict=True):
            difference = float((ours - theirs).float().norm() / theirs.float().norm())
            if not difference <= _LARGEST_DIFFERENCE:
                return f"compiled, the gradient of {name} differs by {difference:.0%}"
    except Exception as error:
        return f"torch.compile fails ({root_cause(error)})"
    finally:
        # A leftover graph of another shape would make sizes in the run's own graphs dynamic.
        torch._dynamo.reset()
    return None


def compile_blocks_(encoder: "Encoder") -> None:
    """Compile each block, norm and head by itself, and the loss, in place. The first step takes many seconds longer.

    One graph, plus one for its backward pass, serves all blocks of one type but the last, which has its own; each for
    one attention kind and any layout and number of targets. If attention has no kernel for the compiler, graphs end
    before and after it and serve both kinds, with any window.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    *others, last = encoder.model.layers
    for layer in encoder.model.layers:
        layer.register_forward_pre_hook(_mark_dynamic)
    behind_it: tuple[nn.Module, ...] = (encoder.model.norm, encoder.head)
    for module in behind_it:
        module.register_forward_pre_hook(_mark_rows_dynamic)
    # The forward method, not the module: later wrappers (activation checkpointing, hooks) stay outside of the graph.
    for module in (encoder.model.embed_norm, *others):
        module.forward = torch.compile(module.forward, dynamic=False, options=_compiler_options())
    for module in (last, *behind_it):
        module.forward = torch.compile(module.forward, options=_compiler_options())
    # Ranks that share a vocabulary communicate in the middle of the loss.
    if type(encoder.lm_head.columns) is VocabularyColumns:
        encoder.lm_head.form = Compiled()


def _compiler_options() -> dict[str, Any]:
    """Options that make the producer of each part of a `cat` write it to its place: otherwise, masked loads would read
    gradients of joined products once per part. Older versions of torch have only the first option.
    """
    from torch._inductor import config

    names = ("max_pointwise_cat_inputs", "max_complex_pointwise_cat_inputs")
    return {name: 1 for name in names if hasattr(config, name)}


def _mark_dynamic(_: nn.Module, arguments: "tuple[Tensor, ForwardContext]") -> None:
    """Mark as dynamic the sizes that differ between micro-batches of one shape: numbers of stretches and of targets."""
    context = arguments[1]
    if isinstance(context.attention, SegmentAttention):
        layout = context.attention.layout
        torch._dynamo.maybe_mark_dynamic(layout.bounds_M, 0)
        if layout.targets is not None:
            torch._dynamo.maybe_mark_dynamic(layout.targets.bounds_M, 0)
    if context.positions_N is not None:
        torch._dynamo.maybe_mark_dynamic(context.positions_N, 0)


def _mark_rows_dynamic(_: nn.Module, arguments: tuple[Tensor]) -> None:
    """Mark as dynamic the number of rows after the last block, which is that of targets."""
    torch._dynamo.maybe_mark_dynamic(arguments[0], 0)
