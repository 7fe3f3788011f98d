"""The last block computes queries at the targets alone, which changes neither loss nor gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.support.kernels import plain_flash
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.flash import FlashKernel, torch_flash
from toolkit.model.layers import joined_products, separate_products
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder

_SEGMENTS = {
    "whole rows": [[1] * 12, [1] * 12],
    "cuts, one without a target": [[1] * 3 + [2] * 2 + [3] * 7, [1] * 11 + [2]],
    "padding inside and at the end": [[1] * 4 + [0] * 3 + [2] * 5, [1] * 6 + [0] * 6],
    "a row of padding": [[1] * 12, [0] * 12],
}
_TARGETS = {"some": [0, 2, 7, 9, 10], "one": [8], "a whole row": [*range(12)], "none": []}


def _encoder(kernel: FlashKernel | None, *, dtype: torch.dtype = torch.float64, **options: object) -> Encoder:
    encoder = tiny_encoder(seed=2, **options).to(dtype)
    Kernels(kernel, joined_products, ()).apply_(encoder)
    return encoder


def _run(
    encoder: Encoder, segments: list[list[int]], positions: list[int], *, knows_targets: bool, num_filled: int = 0
) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradient of every parameter."""
    segments_BS = np.array(segments)
    positions_N = np.array(positions + [segments_BS.size - 1] * num_filled, dtype=np.int64)
    layout = SegmentLayout.from_segments(
        segments_BS, positions_N=positions_N if knows_targets else None, most_repeats=num_filled
    )
    ids_BS = torch.randint(0, 97, segments_BS.shape, generator=torch.Generator().manual_seed(1))
    labels_N = torch.tensor([*range(5, 5 + len(positions)), *[-1] * num_filled])
    encoder.zero_grad()
    loss = encoder(
        ids_BS,
        layout,
        AttentionKind.BIDIRECTIONAL,
        positions_N=torch.from_numpy(positions_N),
        labels_N=labels_N,
        scale=0.5,
    )
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}


def _assert_equal(left: tuple[float, dict[str, Tensor]], right: tuple[float, dict[str, Tensor]]) -> None:
    assert left[0] == pytest.approx(right[0], rel=1e-12)
    for name, gradient in right[1].items():
        torch.testing.assert_close(left[1][name], gradient, rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.parametrize("segments", list(_SEGMENTS.values()), ids=list(_SEGMENTS))
@pytest.mark.parametrize("positions", list(_TARGETS.values()), ids=list(_TARGETS))
def test_loss_and_gradients_are_those_of_all_queries(segments: list[list[int]], positions: list[int]) -> None:
    real = [position for position in positions if np.array(segments).flat[position]]
    encoder = _encoder(plain_flash)
    _assert_equal(_run(encoder, segments, real, knows_targets=True), _run(encoder, segments, real, knows_targets=False))


@pytest.mark.parametrize("options", list(MODEL_OPTIONS.values()), ids=list(MODEL_OPTIONS))
def test_of_every_kind_of_model(options: dict[str, object]) -> None:
    """Against plain torch too, which computes all queries."""
    flash, plain = _encoder(plain_flash, **options), _encoder(None, **options)
    segments, positions = _SEGMENTS["padding inside and at the end"], _TARGETS["some"]
    real = [position for position in positions if np.array(segments).flat[position]]
    _assert_equal(_run(flash, segments, real, knows_targets=True), _run(plain, segments, real, knows_targets=False))


@pytest.mark.parametrize("segments", list(_SEGMENTS.values()), ids=list(_SEGMENTS))
def test_targets_that_fill_the_list_up_change_nothing(segments: list[list[int]]) -> None:
    encoder, positions = _encoder(plain_flash), _TARGETS["one"]
    _assert_equal(
        _run(encoder, segments, positions, knows_targets=True, num_filled=30),
        _run(encoder, segments, positions, knows_targets=False),
    )


@pytest.mark.parametrize("kind", list(AttentionKind))
def test_products_that_are_saved(kind: AttentionKind) -> None:
    """FLOPs on the meta device, with the operator that a GPU runs; of causal attention, all queries are computed."""
    # As many key-value heads as query heads: torch 2.11 counts no others.
    encoder = tiny_encoder(seed=2, num_hidden_layers=1, num_key_value_heads=None).to("meta", torch.bfloat16)
    Kernels(torch_flash, separate_products, ()).apply_(encoder)
    segments_BS, positions_N = np.ones((4, 32), dtype=np.int64), np.arange(0, 128, 4)
    counted = []
    for positions in (None, positions_N):
        layout = SegmentLayout.from_segments(segments_BS, device="meta", positions_N=positions)
        ids_BS, targets_N = torch.zeros(4, 32, dtype=torch.int64, device="meta"), torch.empty(32, device="meta")
        counter = FlopCounterMode(display=False)
        with counter:
            hidden_ND = encoder.model(ids_BS, layout, kind, targets_N.long())
            hidden_ND.sum().backward()
        counted.append(counter.get_flop_counts())
    settings = encoder.settings
    queries = settings.num_attention_heads * settings.head_size
    # A product forward, and one each for the gradients of its input and its weight.
    saved = 3 * 2 * (128 - 32) * settings.hidden_size * queries if kind is AttentionKind.BIDIRECTIONAL else 0
    mm = torch.ops.aten.mm
    products = [sum(found["Global"].get(name, 0) for name in (mm, torch.ops.aten.addmm)) for found in counted]
    assert products[0] - products[1] == saved


@pytest.mark.parametrize("segments", list(_SEGMENTS.values()), ids=list(_SEGMENTS))
def test_a_token_reaches_the_targets_of_its_segment_alone(segments: list[list[int]]) -> None:
    """Bit for bit; a token of padding reaches none."""
    encoder, segments_BS = _encoder(plain_flash), np.array(segments)
    segments_T = (segments_BS + 10 * np.arange(len(segments_BS))[:, None] * (segments_BS > 0)).ravel()
    positions_N = np.flatnonzero(segments_T)[::2]
    layout = SegmentLayout.from_segments(segments_BS, positions_N=positions_N)
    ids_BS = torch.randint(0, 97, segments_BS.shape, generator=torch.Generator().manual_seed(1))
    given = (layout, AttentionKind.BIDIRECTIONAL, torch.from_numpy(positions_N))
    with torch.no_grad():
        before_ND = encoder.model(ids_BS, *given)
        for position in range(segments_BS.size):
            changed_BS = ids_BS.clone()
            changed_BS.view(-1)[position] = (changed_BS.view(-1)[position] + 1) % 97
            is_changed_N = (encoder.model(changed_BS, *given) != before_ND).any(-1).numpy()
            is_reached_N = (segments_T[positions_N] == segments_T[position]) & (segments_T[position] > 0)
            np.testing.assert_array_equal(is_changed_N, is_reached_N, err_msg=f"position {position}")
