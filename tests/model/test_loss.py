"""The chunked cross-entropy against torch's own, on whole logits."""

import weakref
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.support.memory import allocated_by
from toolkit.model.kernels import cross_entropy_forms as module
from toolkit.model.kernels.cross_entropy import cross_entropy_sum
from toolkit.model.kernels.cross_entropy_forms import EAGER, Compiled, CrossEntropyForm
from toolkit.testing.tolerances import tolerance

NUM_TARGETS, WIDTH, VOCABULARY = 11, 6, 13


def _problem(dtype: torch.dtype, *, num_targets: int = NUM_TARGETS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_targets, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (num_targets,), generator=generator)
    labels[2:4] = -1
    return hidden, weight, labels


def _sum(*arguments: Any, **named: Any) -> Tensor:
    """Without weights."""
    loss, losses = cross_entropy_sum(*arguments, **named)
    assert losses is None
    return loss


@pytest.fixture(params=["eager", "compiled"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CrossEntropyForm:
    """Either; the compiled one in one graph without a code generator, whose products the last test compares."""
    if request.param == "eager":
        return EAGER
    torch._dynamo.reset()
    parts = (module.losses_of_targets, module.losses_and_gradient_)
    compiled = tuple(torch.compile(part, backend="aot_eager", fullgraph=True) for part in parts)
    monkeypatch.setattr(module, "compiled_parts", lambda: compiled)
    return Compiled()


def _set_chunk_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(module, "_EAGER_ROWS", rows)
    monkeypatch.setattr(module, "_LARGEST_ROWS", rows)


@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
@pytest.mark.parametrize(
    ("dtype", "has_bias", "has_weights", "z_loss"),
    [(torch.float32, False, False, 0.0), *product([torch.float64], [False, True], [False, True], [0.0, 0.03])],
)
def test_loss_and_gradients_equal_torchs(
    dtype: torch.dtype, has_bias: bool, has_weights: bool, z_loss: float, chunk_rows: int, form: CrossEntropyForm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Weights are in value and gradient, a z-loss in the gradient alone; losses are without both, 0 without a label."""
    _set_chunk_rows(monkeypatch, chunk_rows)
    hidden, weight, labels = _problem(dtype)
    bias = torch.linspace(-2.0, 3.0, VOCABULARY, dtype=dtype).requires_grad_() if has_bias else None
    weights = torch.linspace(0.0, 3.0, len(labels), dtype=dtype)
    ours, losses = cross_entropy_sum(
        hidden, weight, labels, weights if has_weights else None, bias_V=bias, z_loss=z_loss, form=form
    )
    logits = linear(hidden, weight, bias)
    plain = cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    squares = torch.where(labels >= 0, torch.logsumexp(logits, dim=-1) ** 2, 0)
    factors = weights if has_weights else torch.ones_like(weights)
    torch.testing.assert_close(ours, (plain * factors).sum(), **tolerance(dtype))
    if has_weights:
        torch.testing.assert_close(losses, plain.detach(), **tolerance(dtype))
        assert not losses.requires_grad
    else:
        assert losses is None
    inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
    their_loss = ((plain + z_loss * squares) * factors).sum()
    found, expected = (torch.autograd.grad(loss * 0.37, inputs, retain_graph=True) for loss in (ours, their_loss))
    for our, their in zip(found, expected, strict=True):
        torch.testing.assert_close(our, their, **tolerance(dtype))
    if z_loss:
        for without, their in zip(torch.autograd.grad(plain.sum() * 0.37, inputs), expected, strict=True):
            assert (without - their).norm() > 0.01 * their.norm()


def test_a_weight_of_all_targets_scales_bf16_gradients_without_a_systematic_error() -> None:
    """1.003 rounded to bf16 is 1: hidden states are rounded one by one behind the product with it."""
    hidden, weight, labels = _problem(torch.bfloat16, num_targets=2000)
    bias = torch.zeros(VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for factor in (1.0, 1.003):
        loss, _ = cross_entropy_sum(hidden, weight, labels, torch.full((2000,), factor), bias_V=bias)
        gradients = torch.autograd.grad(loss, (hidden, bias))
        found.append([gradient.double().abs().sum() for gradient in gradients])
    # The bias's is a sum of 13 rounded numbers alone.
    for one, scaled, error in zip(*found, (2e-4, 1e-3), strict=True):
        assert float(scaled / one) == pytest.approx(1.003, abs=error)


def test_without_gradients_a_z_loss_changes_nothing() -> None:
    hidden, weight, labels = (part.detach() for part in _problem(torch.float64))
    with torch.no_grad():
        values = [_sum(hidden, weight, labels, z_loss=z_loss).item() for z_loss in (0.0, 0.1)]
    assert values[0] == pytest.approx(values[1], rel=1e-14)


def test_bf16_loss_is_summed_in_fp32(form: CrossEntropyForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are rounded, the sum is not: it stays within rounding of the logits, however many terms it has."""
    _set_chunk_rows(monkeypatch, 64)
    hidden, weight, labels = _problem(torch.bfloat16, num_targets=3000)
    ours = _sum(hidden, weight, labels, form=form)
    our_gradients = torch.autograd.grad(ours, (hidden, weight))
    wide_hidden, wide_weight = (part.detach().double().requires_grad_() for part in (hidden, weight))
    exact = cross_entropy(linear(wide_hidden, wide_weight), labels, ignore_index=-1, reduction="sum")
    exact_gradients = torch.autograd.grad(exact, (wide_hidden, wide_weight))
    assert ours.dtype == torch.float32
    assert abs(ours.item() / exact.item() - 1) < 2e-4
    for our, their in zip(our_gradients, exact_gradients, strict=True):
        assert our.dtype == torch.bfloat16
        assert (our.double() - their).norm() < 4e-3 * their.norm()


def test_softmax_of_bf16_logits_is_taken_in_fp32(form: CrossEntropyForm) -> None:
    """Token by token: over many, roundings to bf16 would cancel out and go unseen."""
    hidden, weight, labels = (part.detach() for part in _problem(torch.bfloat16))
    logits = linear(hidden, weight).double()
    for number in range(4, NUM_TARGETS):
        rows = slice(number, number + 1)
        exact = cross_entropy(logits[rows], labels[rows]).item()
        assert _sum(hidden[rows], weight, labels[rows], form=form).item() == pytest.approx(exact, rel=1e-5)


def test_large_logits_do_not_overflow(form: CrossEntropyForm) -> None:
    hidden = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    weight = torch.eye(2, requires_grad=True)
    loss = _sum(hidden, weight, torch.tensor([1]), form=form)
    (d_hidden,) = torch.autograd.grad(loss, hidden)
    assert loss.item() == 2000.0
    assert d_hidden.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("num_targets", [0, 2])
def test_no_target_gives_zero_and_zero_gradients(num_targets: int, form: CrossEntropyForm) -> None:
    """An empty list, and a list of padding."""
    hidden = torch.randn(num_targets, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    loss = _sum(hidden, weight, torch.full((num_targets,), -1), form=form)
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad.shape == (num_targets, WIDTH)
    assert not hidden.grad.any()
    assert weight.grad.shape == (VOCABULARY, WIDTH)
    assert not weight.grad.any()


class _ProductCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
        return func(*args, **(kwargs or {}))


def test_no_gradient_is_computed_without_need() -> None:
    """One product for the logits; with gradients, two more. In fp64, whose products are all one operation."""
    hidden, weight, labels = _problem(torch.float64)
    with torch.no_grad(), _ProductCounter() as without:
        loss = _sum(hidden, weight, labels)
    with _ProductCounter() as with_gradients:
        same = _sum(hidden, weight, labels)
    assert (without.count, with_gradients.count) == (1, 3)
    assert not loss.requires_grad
    assert loss.item() == same.item()


def test_frozen_weights_get_no_gradient() -> None:
    hidden, weight, labels = _problem(torch.float64)
    weight.requires_grad_(False)
    _sum(hidden, weight, labels).backward()
    assert weight.grad is None
    expected = cross_entropy(linear(hidden, weight), labels, ignore_index=-1, reduction="sum")
    torch.testing.assert_close(hidden.grad, *torch.autograd.grad(expected, hidden), **tolerance(torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_work_is_three_products(dtype: torch.dtype) -> None:
    """2 x N x V x D operations each, on meta tensors: chunks, losses and gradients add none."""
    num_targets, vocabulary, width = 3000, 500, 64
    hidden = torch.empty(num_targets, width, dtype=dtype, device="meta", requires_grad=True)
    weight = torch.empty(vocabulary, width, dtype=dtype, device="meta", requires_grad=True)
    labels = torch.zeros(num_targets, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        _sum(hidden, weight, labels).backward()
    assert counter.get_total_flops() == 3 * 2 * num_targets * vocabulary * width


def test_one_graph_serves_any_number_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients and without, over five numbers of targets in up to three chunks: nothing is compiled again."""
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    parts = (module.losses_of_targets, module.losses_and_gradient_)
    compiled = tuple(torch.compile(part, backend=graphs, fullgraph=True) for part in parts)
    monkeypatch.setattr(module, "compiled_parts", lambda: compiled)
    _set_chunk_rows(monkeypatch, 512)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for num_targets in (256, 512, 768, 1024, 1280):
            hidden, weight, labels = _problem(torch.bfloat16, num_targets=num_targets)
            _sum(hidden, weight, labels, form=Compiled())
            with torch.no_grad():
                _sum(hidden, weight, labels, form=Compiled())
    assert graphs.frame_count == 2


def test_logits_become_their_gradient_in_place() -> None:
    """Generated code: besides the logits it holds nothing of their size, where eager holds two copies in fp32."""
    torch._dynamo.reset()
    # An earlier test may have compiled them without generating code.
    module.compiled_parts.cache_clear()
    rows, vocabulary = 256, 2000
    labels = torch.arange(rows)
    labels[:4] = -1
    logits = [torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (0, 1)]
    _, compiled = module.compiled_parts()
    columns = module.VocabularyColumns()
    compiled(logits[1].clone(), labels, 1e-4)
    expected_loss, expected = EAGER.losses_and_gradient(logits[0].clone(), labels, columns, 1e-4)
    taken = logits[0].clone()
    found = allocated_by(lambda: compiled(taken, labels, 1e-4))
    torch.testing.assert_close(found.result, expected_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(taken[4:], expected[4:], rtol=2**-7, atol=1e-8)
    assert found.peak < logits[0].nbytes / 10
    eager = allocated_by(lambda: EAGER.losses_and_gradient(logits[0].clone(), labels, columns, 1e-4))
    assert eager.peak > 4 * logits[0].nbytes


@pytest.mark.parametrize(("vocabulary", "rows"), [(8192, 16_384), (128_256, 16_384), (262_144, 7936)])
def test_indices_into_a_compiled_chunk_have_32_bits(vocabulary: int, rows: int) -> None:
    assert Compiled().rows(vocabulary) == rows
    assert rows * vocabulary < 2**31


class _LargeTensors(TorchDispatchMode):
    """The most bytes that tensors of at least `smallest` numbers, made under it, held at one time."""

    def __init__(self, smallest: int) -> None:
        super().__init__()
        self._smallest, self._made, self.peak = smallest, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() >= self._smallest:
            self._made.append(weakref.ref(result))
        alive = [tensor for made in self._made if (tensor := made()) is not None]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}
        self.peak = max(self.peak, sum(storages.values()))
        return result


def test_a_chunk_is_gone_before_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks, or five, need no more memory for logits than one."""
    monkeypatch.setattr(module, "_EAGER_ROWS", 8)
    vocabulary = 1000
    weight = torch.randn(vocabulary, WIDTH).bfloat16().requires_grad_()
    for z_loss in (0.0, 1e-4):
        peaks = []
        for num_chunks in (1, 2, 5):
            hidden = torch.randn(8 * num_chunks, WIDTH).bfloat16().requires_grad_()
            labels = torch.arange(8 * num_chunks)
            with _LargeTensors(8 * vocabulary) as tensors:
                _sum(hidden, weight, labels, z_loss=z_loss)
            peaks.append(tensors.peak)
        assert peaks[0] > 8 * vocabulary * 4
        assert peaks[1:] == peaks[:1] * 2
        # The logits, and log-probabilities where they do not take their place.
        assert peaks[0] <= 2 * 8 * vocabulary * 4
