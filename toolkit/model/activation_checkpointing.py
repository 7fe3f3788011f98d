"""Activation checkpointing of blocks: activations that a block's backward pass needs are recomputed, not kept.

`full` keeps only a block's input and runs its forward pass twice. `selective` also keeps the results of matmuls and of
flash attention, so that the second forward pass runs only operations that are cheap to run and large to keep: norms,
rotations, the feed-forward's activation. The probabilities of attention on a CPU count as large: they are recomputed,
as flash attention does by itself (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", section 5).

Under torch.compile, a policy can only be given to the compiler inside of one graph, and on a CPU graphs end at the
attention: in compiled blocks, `selective` applies only to the feed-forward half.

The second pass repeats the operations of the first on the same numbers, so results are bitwise equal.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from toolkit.model.config import ActivationCheckpointing

# By name, since some exist only if their package is installed. Only results that an operator returns: one written into
# a tensor argument would not be written there in the second pass.
_KEPT_RESULTS = frozenset(
    {
        "aten::addmm",
        "aten::mkldnn_linear",
        "aten::mm",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_flash_attention_forward",
    }
)


def checkpoint_blocks_(blocks: Iterable[nn.Module], mode: ActivationCheckpointing) -> None:
    """Make each block recompute in its backward pass what `mode` does not keep, in place; names are unchanged.

    Blocks may be compiled (before this), hold shares of their weights, or have them released between passes (ZeRO-3).
    """
    if mode == "none":
        return
    # Nothing in a block draws random numbers.
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    for block in blocks:
        if mode == "selective" and hasattr(block.forward, "_torchdynamo_orig_callable"):
            # A compiled function reuses its buffers, so results inside of it cannot be kept from the outside.
            contexts = partial(create_selective_checkpoint_contexts, _policy)
            inner = partial(checkpoint, block.feed_forward, context_fn=contexts, **options)
            block.feed_forward = inner  # type: ignore[assignment]
            continue
        if mode == "selective":
            options["context_fn"] = _contexts
        block.forward = partial(checkpoint, block.forward, **options)


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The first pass: results are kept, in order, by operator."""

    def __init__(self, kept: dict[Any, list[Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if operator.name() in _KEPT_RESULTS:
            self._kept[operator].append(_detached(result))
        return result


class _Reuse(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The second pass: kept results are returned.

    Other operators may differ from the first pass: under ZeRO-3, weights are gathered at other times. (torch's own
    contexts for this require every operator to run again.)
    """

    def __init__(self, kept: dict[Any, list[Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept
        self._coming: dict[Any, Iterator[Any]] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.name() not in _KEPT_RESULTS:
            return operator(*args, **(kwargs or {}))
        if operator not in self._coming:
            # Handed over to the second pass, and freed with its results.
            self._coming[operator] = iter(self._kept.pop(operator))
        return next(self._coming[operator])


def _contexts() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    kept: dict[Any, list[Any]] = defaultdict(list)
    return _Keep(kept), _Reuse(kept)


def _detached(result: Any) -> Any:
    """The result detached from the graph, which would otherwise live as long as the result."""
    if isinstance(result, Tensor):
        return result.detach()
    return tuple(map(_detached, result)) if isinstance(result, tuple) else result


def _policy(_context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    is_kept = operator.name() in _KEPT_RESULTS
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
