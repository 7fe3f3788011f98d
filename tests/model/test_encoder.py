"""The whole model: parity with Hugging Face, leaks, targets, empty lists, precision."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.support.kernels import traced_flash
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, attention
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.encoder import SelfAttention
from toolkit.model.kernels import plain_attention, window_attention
from toolkit.model.segments import SegmentLayout
from toolkit.testing import models
from toolkit.testing.models import MODEL_OPTIONS, dense_visibility, hub_tensors, hugging_face_twin, tiny_encoder
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS, tolerance

SEGMENTS_BS = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2, [1] * 3 + [2] * 3 + [3] * 10, [1] * 16])
POSITIONS_N = torch.tensor([1, 4, 6, 13, 17, 40])


def _ids(*, seed: int = 7) -> Tensor:
    return torch.randint(0, 97, SEGMENTS_BS.shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def shared_graphs() -> Iterator[None]:
    """Tracing is what costs: models of different tests share the graphs of their blocks, and none runs without one."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@pytest.fixture(params=["bmm", "sdpa", "flash", "flash in compiled blocks"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shared_graphs: None) -> str:
    """Every test that names it runs on each kernel; one stands for a GPU's, outside and inside of the graphs."""
    if request.param.startswith("flash"):
        is_compiled = request.param == "flash in compiled blocks"
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
        monkeypatch.setitem(globals(), "tiny_encoder", partial(_with_flash, is_compiled=is_compiled))
    if request.param == "sdpa":
        monkeypatch.setattr(attention, "LONGEST_FOR_BMM", 0)
    monkeypatch.setattr(plain_attention, "CHUNK", 4)
    monkeypatch.setattr(window_attention, "_SHORTEST_BAND", 4)
    return str(request.param)


def _with_flash(*, is_compiled: bool, **options: Any) -> Encoder:
    encoder = models.tiny_encoder(**options)
    for module in encoder.modules():
        if isinstance(module, SelfAttention):
            module.kernel = traced_flash
    if is_compiled:
        compile_blocks_(encoder)
    return encoder


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"num_key_value_heads": 4}, {"tie_word_embeddings": True}, {"rope_theta": 250.0}),
        *MODEL_OPTIONS.values(),
        # Windows that just hide the ends of the longest segment, and just do not.
        *(MODEL_OPTIONS["modernbert"] | {"local_attention": width} for width in (28, 30, 32, 200)),
        *(MODEL_OPTIONS["ultrabert"] | {"local_attention": width} for width in (28, 32)),
    ],
)
@pytest.mark.parametrize("kind", AttentionKind)
def test_logits_equal_hugging_face(kind: AttentionKind, changes: dict[str, object]) -> None:
    """Packed rows here; one segment at a time there, so this also holds positions to restart at each segment."""
    encoder = tiny_encoder(seed=1, **changes)
    twin = hugging_face_twin(encoder, kind)
    input_ids_BS = _ids()
    with torch.no_grad():
        logits_BSV = encoder.logits(input_ids_BS, SEGMENTS_BS, kind).view(*SEGMENTS_BS.shape, -1)
        for row in range(len(SEGMENTS_BS)):
            for segment in range(1, int(SEGMENTS_BS[row].max()) + 1):
                columns = SEGMENTS_BS[row] == segment
                expected = twin(input_ids_BS[row, columns][None]).logits[0]
                assert expected.std() > 0.5
                assert (logits_BSV[row, columns] - expected).abs().max() <= HUGGING_FACE_LOGITS


@pytest.mark.parametrize("changes", [{}, *MODEL_OPTIONS.values()])
@pytest.mark.parametrize("kind", AttentionKind)
def test_gradients_equal_hugging_face(kind: AttentionKind, changes: dict[str, object]) -> None:
    encoder = tiny_encoder(seed=2, **changes)
    twin = hugging_face_twin(encoder, kind)
    input_ids_BS = _ids()[:, :8]
    positions_N, labels_N = torch.tensor([0, 5, 9]), torch.tensor([3, 96, 0])
    loss = encoder(
        input_ids_BS, torch.ones_like(input_ids_BS), kind, positions_N=positions_N, labels_N=labels_N, scale=0.25
    )
    loss.backward()
    logits_NV = twin(input_ids_BS).logits.flatten(0, 1)[positions_N]
    expected = cross_entropy(logits_NV, labels_N, reduction="sum") * 0.25
    expected.backward()
    torch.testing.assert_close(loss, expected, **tolerance(torch.float32))
    ours = dict(encoder.named_parameters())
    theirs = {name: parameter.grad for name, parameter in twin.named_parameters() if not name.endswith("o_proj.bias")}
    parts = hub_tensors(encoder.settings, kind).parts
    assert theirs.keys() == parts.keys()
    for name, gradient in theirs.items():
        found = torch.cat([ours[part].grad for part in parts[name]])
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("changes", [{}, *MODEL_OPTIONS.values()])
def test_parameter_names_and_shapes_are_hugging_faces(changes: dict[str, object]) -> None:
    encoder = tiny_encoder(seed=0, **changes)
    twin = hugging_face_twin(encoder, AttentionKind.BIDIRECTIONAL)
    theirs = {name: tuple(parameter.shape) for name, parameter in twin.named_parameters() if "o_proj.bias" not in name}
    assert hub_tensors(encoder.settings, AttentionKind.BIDIRECTIONAL).shapes == theirs


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("changes", [{}, MODEL_OPTIONS["modernbert"], MODEL_OPTIONS["ultrabert"]])
@pytest.mark.parametrize("kind", AttentionKind)
def test_a_token_reaches_its_own_segment_only(kind: AttentionKind, changes: dict[str, object]) -> None:
    """Changing a token changes the logits of those who may see it; others, bit for bit, not."""
    encoder = tiny_encoder(seed=3, **changes)
    input_ids_BS = _ids()
    visible = torch.block_diag(*dense_visibility(SEGMENTS_BS, kind)) != 0
    is_padding = SEGMENTS_BS.flatten() == 0
    with torch.no_grad():
        before = encoder.logits(input_ids_BS, SEGMENTS_BS, kind)
        for position in range(SEGMENTS_BS.numel()):
            changed = input_ids_BS.flatten().clone()
            changed[position] = (changed[position] + 1) % 97
            after = encoder.logits(changed.view_as(input_ids_BS), SEGMENTS_BS, kind)
            is_changed = (after != before).any(-1)
            # What a pad computes about itself is nobody's: it is no target and nobody's neighbour.
            is_changed[is_padding] = False
            assert torch.equal(is_changed, visible[:, position]), f"position {position}"


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", AttentionKind)
def test_gradient_flows_to_what_is_seen_and_nowhere_else(kind: AttentionKind) -> None:
    """The loss at one position: the embeddings that get a gradient are those of the positions it sees."""
    encoder = tiny_encoder(seed=3)
    input_ids_BS = torch.arange(SEGMENTS_BS.numel()).view_as(SEGMENTS_BS)
    visible = torch.block_diag(*dense_visibility(SEGMENTS_BS, kind)) != 0
    for position in (0, 4, 5, 9, 13, 16, 19, 31, 47):
        encoder.zero_grad()
        target = torch.tensor([position])
        encoder(input_ids_BS, SEGMENTS_BS, kind, positions_N=target, labels_N=target, scale=1.0).backward()
        gradient = encoder.model.embed_tokens.weight.grad
        assert gradient.isfinite().all()
        assert torch.equal(gradient[: SEGMENTS_BS.numel()].any(-1), visible[position])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", AttentionKind)
def test_loss_is_the_scaled_sum_over_the_targets(kind: AttentionKind) -> None:
    encoder = tiny_encoder(seed=4)
    labels_N = torch.tensor([0, 5, 96, -1, 7, 8])
    logits_NV = encoder.logits(_ids(), SEGMENTS_BS, kind)[POSITIONS_N]
    expected = cross_entropy(logits_NV, labels_N, ignore_index=-1, reduction="sum") / 5
    for scale in (0.2, torch.tensor(0.2)):
        loss = encoder(_ids(), SEGMENTS_BS, kind, positions_N=POSITIONS_N, labels_N=labels_N, scale=scale)
        assert loss.shape == ()
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, expected, **tolerance(torch.float32))
    few = encoder.logits(_ids(), SEGMENTS_BS, kind, positions_N=POSITIONS_N)
    torch.testing.assert_close(few, logits_NV, **tolerance(torch.float32))


@pytest.mark.parametrize("kind", AttentionKind)
def test_rows_of_a_micro_batch_add_up(kind: AttentionKind) -> None:
    """Three rows at once, or one after the other: the same loss and the same gradients."""
    encoder, labels_N = tiny_encoder(seed=5, dtype=torch.float64), torch.arange(6)
    whole = encoder(_ids(), SEGMENTS_BS, kind, positions_N=POSITIONS_N, labels_N=labels_N, scale=0.5)
    expected = torch.autograd.grad(whole, list(encoder.parameters()))
    total, num_columns = torch.zeros(()), SEGMENTS_BS.shape[1]
    for row in range(len(SEGMENTS_BS)):
        is_here = POSITIONS_N // num_columns == row
        loss = encoder(
            _ids()[row : row + 1],
            SEGMENTS_BS[row : row + 1],
            kind,
            positions_N=POSITIONS_N[is_here] % num_columns,
            labels_N=labels_N[is_here],
            scale=0.5,
        )
        loss.backward()
        total = total + loss.detach()
    # Norms and rotations stay fp32 in an fp64 model.
    torch.testing.assert_close(total.float(), whole.detach().float(), **tolerance(torch.float32))
    for parameter, gradient in zip(encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.float(), gradient.float(), **tolerance(torch.float32))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("is_tied", [False, True])
def test_no_target_gives_zero_loss_and_zero_gradients(kind: AttentionKind, is_tied: bool) -> None:
    """Zero, not absent: an engine waits for a gradient of every parameter on every rank."""
    encoder = tiny_encoder(seed=6, tie_word_embeddings=is_tied)
    nothing = torch.empty(0, dtype=torch.int64)
    loss = encoder(_ids(), SEGMENTS_BS, kind, positions_N=nothing, labels_N=nothing, scale=3.0)
    loss.backward()
    assert loss.item() == 0.0
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad.any()] == []


def test_layout_made_beforehand_is_the_same_as_segments() -> None:
    encoder = tiny_encoder(seed=8)
    layout = SegmentLayout.from_segments(SEGMENTS_BS.numpy())
    for kind in AttentionKind:
        assert torch.equal(encoder.logits(_ids(), layout, kind), encoder.logits(_ids(), SEGMENTS_BS, kind))


@pytest.mark.parametrize("kind", AttentionKind)
def test_bf16_weights_stay_close_to_fp32(kind: AttentionKind) -> None:
    """Same rounded weights on both sides; what differs is the rounding between operations."""
    narrow = tiny_encoder(seed=9, dtype=torch.bfloat16, initializer_range=0.05)
    wide = Encoder(narrow.settings)
    wide.load_state_dict(narrow.state_dict())
    arguments = {"positions_N": POSITIONS_N, "labels_N": torch.arange(6), "scale": 1 / 6}
    loss = narrow(_ids(), SEGMENTS_BS, kind, **arguments)
    expected = wide(_ids(), SEGMENTS_BS, kind, **arguments)
    loss.backward()
    expected.backward()
    assert loss.dtype == torch.float32
    assert abs(loss.item() - expected.item()) < 5e-3
    for our, their in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert our.grad.dtype == torch.bfloat16
        assert (our.grad.float() - their.grad).norm() < 0.03 * their.grad.norm()


def test_angles_that_are_set_are_those_of_a_model_that_has_them() -> None:
    turned, given = tiny_encoder(seed=3), tiny_encoder(seed=3, rope_theta=50.0)
    before, expected = (encoder.logits(_ids(), SEGMENTS_BS, AttentionKind.CAUSAL) for encoder in (turned, given))
    turned.set_rope(given.settings)
    found = turned.logits(_ids(), SEGMENTS_BS, AttentionKind.CAUSAL)
    assert torch.equal(found, expected)
    assert not torch.equal(found, before)


def test_rotation_angles_are_not_rounded_with_the_module() -> None:
    """A late position's angle is wrong by radians where the rates were cast to bf16 with the weights."""
    encoder = tiny_encoder(seed=9, dtype=torch.bfloat16)
    wide = tiny_encoder(seed=9)
    wide.load_state_dict(encoder.state_dict())
    input_ids_BS = torch.randint(0, 97, (1, 900), generator=torch.Generator().manual_seed(1))
    arguments = (input_ids_BS, torch.ones_like(input_ids_BS), AttentionKind.CAUSAL)
    with torch.no_grad():
        difference = (encoder.logits(*arguments) - wide.logits(*arguments))[-100:]
    assert difference.abs().mean() < 0.04 * wide.logits(*arguments).std()


@pytest.mark.parametrize("kind", AttentionKind)
def test_without_gradients_the_loss_is_the_same(kind: AttentionKind) -> None:
    encoder = tiny_encoder(seed=10)
    arguments = {"positions_N": POSITIONS_N, "labels_N": torch.arange(6), "scale": 1.0}
    with torch.no_grad():
        loss = encoder(_ids(), SEGMENTS_BS, kind, **arguments)
    assert not loss.requires_grad
    assert loss.item() == encoder(_ids(), SEGMENTS_BS, kind, **arguments).item()
