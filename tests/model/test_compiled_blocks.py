"""Compiled blocks with attention in their graphs: how many graphs there are, and that results stay.

A kernel of the CPU stands for a GPU's: the compiler takes either for an operator that it does not look into.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tests.support.kernels import traced_flash
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder
from toolkit.model.activation_checkpointing import checkpoint_blocks_
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.config import ActivationCheckpointing
from toolkit.model.encoder import Block, LastBlock, SelfAttention
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.cross_entropy_forms import EAGER
from toolkit.model.kernels.flash import FlashKernel, torch_flash
from toolkit.model.layers import joined_products
from toolkit.model.segments import MixedRows, SegmentLayout
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder

# Cuts of a row of 32 into segments: few, as many as need a longer list of bounds, and with padding.
_CUTS = {"few": (20,), "many": tuple(range(1, 32)), "padded": (5, 9)}
_NUM_TARGETS = (16, 5, 24)
_ROWS = 4


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Graphs that the compiler made, by direction; it generates no code. More than 8 entries of a function fail."""
    made: Counter[str] = Counter()

    def counted(direction: str, graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        made[direction] += 1
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=partial(counted, "forward"), bw_compiler=partial(counted, "backward"))
    yield from _counting(backend, made, monkeypatch)


@pytest.fixture
def forward_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The same of the forward pass alone, as Dynamo makes them: with a backward pass, tracing takes twice as long."""
    made: Counter[str] = Counter()

    def counted(graph: torch.fx.GraphModule, *_: object, **options: object) -> Callable[..., object]:
        made["forward"] += 1
        return graph.forward

    yield from _counting(counted, made, monkeypatch)


def _counting(
    backend: Callable[..., object], made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counter[str]]:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield made
    torch._dynamo.reset()


def _encoder(kernel: FlashKernel, **options: object) -> Encoder:
    encoder = tiny_encoder(seed=2, **options)
    Kernels(kernel, joined_products, ()).apply_(encoder)
    return encoder


def _positions(num_targets: int) -> Tensor:
    return torch.arange(3, 3 + 2 * num_targets, 2)


def _layout(name: str, num_targets: int) -> SegmentLayout:
    segments_BS = torch.ones(_ROWS, 32, dtype=torch.int64)
    for cut in _CUTS[name]:
        segments_BS[:, cut:] += 1
    if name == "padded":
        segments_BS[1:, 20:] = 0
    return SegmentLayout.from_segments(segments_BS, positions_N=_positions(num_targets).numpy())


def _loss(encoder: Encoder, layout: SegmentLayout, kind: AttentionKind | MixedRows, num_targets: int) -> Tensor:
    device = encoder.lm_head.weight.device
    ids_BS = torch.randint(0, 97, (_ROWS, 32), generator=torch.Generator().manual_seed(num_targets)).to(device)
    positions_N = _positions(num_targets).to(device)
    loss: Tensor = encoder(
        ids_BS, layout, kind, positions_N=positions_N, labels_N=ids_BS.flatten()[positions_N], scale=1.0 / num_targets
    )
    return loss


def _assert_equal(compiled: Encoder, plain: Encoder, kind: AttentionKind) -> None:
    """Loss and gradients, of three layouts and three numbers of targets."""
    for name in _CUTS:
        for num_targets in _NUM_TARGETS:
            losses = []
            for encoder in (compiled, plain):
                encoder.zero_grad()
                loss = _loss(encoder, _layout(name, num_targets), kind, num_targets)
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], rel=1e-6)
            for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
                # With AVX2 alone, sums are added up in another order: up to 1.4e-6 apart.
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize(
    ("options", "types", "around"),
    [
        ({}, 1, 1),
        (MODEL_OPTIONS["biases"], 1, 1),
        (MODEL_OPTIONS["head norms, wide heads"], 1, 1),
        # A first block without a norm, one of either type; the last. Around them: two norms and the dense head.
        (MODEL_OPTIONS["modernbert"] | {"num_hidden_layers": 4}, 3, 3),
        # One of either type; the last. Around them: a norm and the head's two products.
        (MODEL_OPTIONS["ultrabert"] | {"num_hidden_layers": 4}, 2, 2),
    ],
)
def test_a_block_is_one_graph_each_way_whatever_the_layout_and_the_targets(
    options: dict[str, object], types: int, around: int, graphs: Counter[str]
) -> None:
    """Three layouts, three numbers of targets, with evaluation: two functions, each once a kind and mode, the first for
    each type of block.
    """
    compiled, plain = _encoder(traced_flash, **options), _encoder(traced_flash, **options)
    compile_blocks_(compiled)
    # The blocks' graphs are counted here, and not those of the loss.
    compiled.lm_head.form = EAGER
    counts = []
    # Other options have nothing to do with the kind, nor with whether there are gradients.
    kinds = (
        [AttentionKind.BIDIRECTIONAL] if options and types == 1 else [AttentionKind.CAUSAL, AttentionKind.BIDIRECTIONAL]
    )
    for kind in kinds:
        _assert_equal(compiled, plain, kind)
        counts.append(dict(graphs))
        # The next test evaluates blocks of three types.
        with torch.no_grad():
            for name in () if options else _CUTS:
                _loss(compiled, _layout(name, 5), kind, 5)
    # The blocks and the last block, and what is around them, which the kind does not change.
    assert counts[0] == {"forward": types + 1 + around, "backward": types + 1 + around}
    modes = 1 if options else 2
    of_blocks = len(kinds) * (types + 1)
    assert graphs == {"forward": modes * (of_blocks + around), "backward": of_blocks + around}
    codes = [type(compiled.model.layers[number]).forward.__code__ for number in (0, -1)]
    assert [len(_debug_get_cache_entry_list(code)) for code in codes] == [
        modes * len(kinds) * types,
        modes * len(kinds),
    ]


def test_rows_of_several_lengths_are_compiled_each(forward_graphs: Counter[str]) -> None:
    """As phases have them: two lengths, both kinds, blocks of three types; without gradients, which trace faster."""
    encoder = _encoder(traced_flash, **MODEL_OPTIONS["modernbert"], num_hidden_layers=4)
    compile_blocks_(encoder)
    encoder.lm_head.form = EAGER
    positions_N = torch.arange(6)
    for length in (8, 16):
        layout = SegmentLayout.from_segments(torch.ones(2, length), positions_N=positions_N.numpy())
        ids_BS = torch.ones(2, length, dtype=torch.int64)
        for kind in AttentionKind:
            with torch.no_grad():
                encoder(ids_BS, layout, kind, positions_N=positions_N, labels_N=positions_N, scale=1.0)
    assert len(_debug_get_cache_entry_list(Block.forward.__code__)) == 2 * 3 * len(AttentionKind)


@pytest.mark.parametrize("is_first", [True, False])
def test_rows_of_both_kinds_leave_those_of_one_their_graphs(is_first: bool, forward_graphs: Counter[str]) -> None:
    """They break a block's graph up; before or after them, a block of one kind is one graph, also with other bounds."""
    encoder = _encoder(traced_flash)
    compile_blocks_(encoder)
    encoder.lm_head.form = EAGER
    segments = torch.ones(_ROWS, 32, dtype=torch.int64)

    def mixed() -> None:
        for rows in (1, 2, 3):
            parts = segments.split([rows, _ROWS - rows])
            _loss(encoder, _layout("few", 5), MixedRows(*map(SegmentLayout.from_segments, parts)), 5)

    if is_first:
        mixed()
    before = forward_graphs["forward"]
    for kind in AttentionKind:
        for name in _CUTS:
            _loss(encoder, _layout(name, 5), kind, 5)
    # The final norm has its graph by then, or gets it here.
    assert forward_graphs["forward"] - before == (4 if is_first else 5)
    mixed()
    assert len(_debug_get_cache_entry_list(SelfAttention.forward.__code__)) == 2
    assert [len(_debug_get_cache_entry_list(code.forward.__code__)) for code in (Block, LastBlock)] == [3, 3]


def test_torchs_operator_is_taken_into_the_graph(graphs: Counter[str]) -> None:
    """On the meta device, where it needs no GPU: what a GPU's block is compiled to."""
    encoder = _encoder(torch_flash, num_hidden_layers=3).to("meta", torch.bfloat16)
    compile_blocks_(encoder)
    encoder.lm_head.form = EAGER
    for kind in AttentionKind:
        for name in _CUTS:
            for num_targets in _NUM_TARGETS:
                layout = _layout(name, num_targets)
                assert layout.targets is not None
                moved = replace(
                    layout,
                    bounds_M=layout.bounds_M.to("meta"),
                    rope_positions_T=layout.rope_positions_T.to("meta"),
                    is_real_T=layout.is_real_T.to("meta"),
                    targets=replace(layout.targets, bounds_M=layout.targets.bounds_M.to("meta")),
                )
                _loss(encoder, moved, kind, num_targets).backward()  # type: ignore[no-untyped-call]
    assert graphs == {"forward": 5, "backward": 5}


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_checkpointed_blocks_stay_one_graph_each_way(mode: ActivationCheckpointing, graphs: Counter[str]) -> None:
    """What a block computes again is inside of its graphs (selective), or is its graph run twice (full)."""
    compiled, plain = _encoder(traced_flash), _encoder(traced_flash)
    compile_blocks_(compiled)
    compiled.lm_head.form = EAGER
    checkpoint_blocks_(compiled.model.layers, mode)
    _assert_equal(compiled, plain, AttentionKind.BIDIRECTIONAL)
    assert graphs == {"forward": 3, "backward": 3}
