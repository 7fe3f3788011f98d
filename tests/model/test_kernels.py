"""Which attention kernel a run takes, on GPUs and with packages that are made up."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.support.kernels import plain_flash
from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, attention
from toolkit.model.config import AttentionKernel
from toolkit.model.encoder import FeedForward, SelfAttention
from toolkit.model.kernels import choice, flash
from toolkit.model.kernels.choice import Kernels, _is_installed
from toolkit.model.kernels.flash import torch_flash
from toolkit.model.kernels.trial import try_kernel
from toolkit.model.layers import Products, joined_products, separate_products
from toolkit.model.segments import MixedRows, SegmentLayout
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder

_GPU = torch.device("cuda", 0)


class _Machine:
    """A GPU, what is installed beside it, and what was put in the place of torch's operator."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.capability, self.modules, self.activated = (9, 0), set[str](), list[str]()
        self.registered, self.has_torchs = ["FA3", "FA4"], True
        for module in (choice, flash):
            patch.setattr(module, "capability", lambda device: self.capability)
        patch.setattr(choice, "_is_installed", lambda module: module in self.modules)
        patch.setattr(torch.nn.attention, "list_flash_attention_impls", lambda: self.registered)
        patch.setattr(torch.nn.attention, "activate_flash_attention_impl", self.activated.append)
        patch.setattr(choice, "try_kernel", lambda *arguments: None)
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: self.has_torchs)

    def choose(self, attention: AttentionKernel | None = None, **options: Any) -> Kernels:
        options = {"device": _GPU, "dtype": torch.bfloat16, "head_size": 64, "attention": attention} | options
        return Kernels.choose(blocks="compiled", weights="whole", **options)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Machine]:
    return _Machine(monkeypatch)


_NO_3 = (
    "not flash3: no module flash_attn_interface (to install it: the wheels at "
    "download.pytorch.org/whl/cu130/flash-attn-3)"
)
_BOTH = {"flash_attn_interface", "flash_attn.cute"}


@pytest.mark.parametrize(
    ("capability", "modules", "line", "activated"),
    [
        ((9, 0), _BOTH, "attention kernel flash3", ["FA3"]),
        # The alpha of 4 is taken where it is named.
        ((9, 0), {"flash_attn.cute"}, f"attention kernel flash2 ({_NO_3})", []),
        (
            (10, 0),
            _BOTH,
            "attention kernel flash2 (not flash3: it needs compute capability 9.x, found 10.0)",
            [],
        ),
    ],
)
def test_the_first_that_can_run_is_taken_and_told(
    capability: tuple[int, int], modules: set[str], line: str, activated: list[str], machine: _Machine
) -> None:
    machine.capability, machine.modules = capability, modules
    kernels = machine.choose()
    assert kernels.choices == (line,)
    assert kernels.attention is torch_flash
    assert kernels.names == {"attention": line.split()[2], "blocks": "compiled"}
    assert machine.activated == activated


def test_a_torch_that_knows_no_others_takes_its_own(machine: _Machine) -> None:
    machine.registered, machine.modules = [], _BOTH
    assert machine.choose().choices == (
        f"attention kernel flash2 (not flash3: torch {torch.__version__} does not know it)",
    )
    assert machine.activated == []


def test_a_torch_without_flash_attention_takes_its_plain_one(machine: _Machine) -> None:
    machine.has_torchs = False
    kernels = machine.choose()
    assert kernels.attention is None
    assert kernels.choices == (f"attention kernel sdpa ({_NO_3}; not flash2: this torch was built without it)",)


@pytest.mark.parametrize(
    "error",
    [
        OSError("libcudart.so.13: cannot open shared object file"),
        AttributeError("module 'cutlass.cute' has no attribute 'nvgpu'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_package_that_does_not_load_is_passed_over(
    error: Exception, machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activate(name: str) -> None:
        raise error

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activate)
    machine.modules = {"flash_attn_interface"}
    told = f"attention kernel flash2 (not flash3: it does not run here ({type(error).__name__}: {error}))"
    assert machine.choose().choices == (told,)


def test_a_package_built_for_another_torch_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for a module inside of it imports it."""
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')\n")
    with monkeypatch.context() as patch:
        machine = _Machine(patch)
        patch.setattr(choice, "_is_installed", _is_installed)
        patch.syspath_prepend(tmp_path)
        with pytest.raises(SettingsError, match=r"does not run here \(ImportError: undefined symbol: _ZN3c10\)"):
            machine.choose("flash4")


def test_a_kernel_that_fails_at_its_first_call_is_passed_over(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put in the place of torch's operator is taken away again, before torch's own is called."""
    steps: list[str] = []

    def call(*arguments: object) -> None:
        steps.append("call")
        if steps.count("call") == 1:
            raise ValueError("too many values to unpack (expected 2)")

    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", lambda **_: steps.append("restore"))
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", steps.append)
    monkeypatch.setattr(choice, "try_kernel", call)
    machine.modules = {"flash_attn_interface"}
    (line,) = machine.choose().choices
    assert line == (
        "attention kernel flash2 (not flash3: it does not run here (ValueError: too many values to unpack "
        "(expected 2)))"
    )
    assert steps == ["restore", "FA3", "call", "restore", "restore", "call"]


@pytest.mark.parametrize("name", [None, "flash2"])
def test_where_torchs_own_kernel_fails_it_is_plain_torch_unless_it_was_named(
    name: AttentionKernel | None, machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors")

    monkeypatch.setattr(choice, "try_kernel", call)
    found = "it does not run here (RuntimeError: CUDA error: no kernel image is available for execution on the device)"
    if name is None:
        kernels = machine.choose()
        assert (kernels.attention, kernels.names["attention"]) == (None, "sdpa")
        assert kernels.choices == (f"attention kernel sdpa ({_NO_3}; not flash2: {found})",)
        return
    with pytest.raises(SettingsError, match=re.escape(f'"flash2" cannot run here: {found}.\nLeave it unset')):
        machine.choose(name)


def test_a_kernel_that_fails_on_another_rank_is_passed_over_here(machine: _Machine) -> None:
    machine.modules = _BOTH
    asked: list[str | None] = []

    def agree(reason: str | None) -> str | None:
        asked.append(reason)
        return "on rank 1, no module flash_attn_interface" if len(asked) == 1 else reason

    kernels = machine.choose(agree=agree)
    assert asked == [None, None]
    assert kernels.choices == ("attention kernel flash2 (not flash3: on rank 1, no module flash_attn_interface)",)


def test_plain_torch_is_taken_where_it_is_named_and_nothing_is_tried(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_reason_against", None)
    machine.modules = _BOTH
    for device in (_GPU, torch.device("cpu")):
        kernels = machine.choose("sdpa", device=device)
        assert (kernels.attention, kernels.names["attention"]) == (None, "sdpa")
        assert kernels.choices == ("attention kernel sdpa",)


_CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.float32, 63), (torch.bfloat16, 8)])
def test_a_kernel_that_is_right_passes_its_trial(dtype: torch.dtype, window: int | None) -> None:
    called: list[tuple[int | None, bool]] = []

    def kernel(*arguments: Any) -> Tensor:
        queries, keys = (bounds_M.diff() for bounds_M in arguments[3:5])
        called.append((arguments[-1], bool(((queries == 0) & (keys > 0)).any())))
        if arguments[-1] is not None:
            assert int(keys.max()) >= 3 * arguments[-1]
            assert min(arguments[5:7]) > arguments[-1]
        return plain_flash(*arguments)

    try_kernel(kernel, _CPU, dtype, 16, window)
    whole = [(None, False)] * 2
    assert called == [*whole, *([] if window is None else [(window, False)] * 2), (None, True)]


def _reads_position_0_alone(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return plain_flash(query, key, value[:1].expand_as(value), *rest)


def _ignores_the_window(*arguments: Any) -> Tensor:
    return plain_flash(*arguments[:-1], None)


def _sees_one_position_more(*arguments: Any) -> Tensor:
    return plain_flash(*arguments[:-1], None if arguments[-1] is None else arguments[-1] + 1)


def _ignores_the_kind(*arguments: Any) -> Tensor:
    return plain_flash(*arguments[:-2], AttentionKind.BIDIRECTIONAL, arguments[-1])


def _shares_heads_in_another_order(query: Tensor, *rest: Any) -> Tensor:
    return plain_flash(query.flip(1), *rest).flip(1)


def _loses_the_gradient_of_keys(query: Tensor, key: Tensor, *rest: Any) -> Tensor:
    return plain_flash(query, key.detach() + 0 * key, *rest)


def _gives_no_number(*arguments: Any) -> Tensor:
    return plain_flash(*arguments) / 0


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (_reads_position_0_alone, "the output of causal attention differs by"),
        (_ignores_the_window, "the output of causal attention under a window of 16 differs by"),
        (_sees_one_position_more, "the output of causal attention under a window of 16 differs by"),
        (_ignores_the_kind, "the output of causal attention differs by"),
        (_shares_heads_in_another_order, "the output of causal attention differs by"),
        (_loses_the_gradient_of_keys, "the gradient of keys of causal attention differs by 100.0% from plain torch's"),
        (_gives_no_number, "the output of causal attention differs by nan%"),
    ],
)
def test_a_kernel_that_computes_something_else_is_passed_over(
    kernel: Any, found: str, machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For plain torch, and nothing calls it any more, in rows of both kinds either."""

    def tried(_: Any, __: Any, dtype: torch.dtype, *shape: Any) -> None:
        try_kernel(kernel, _CPU, dtype, *shape)

    monkeypatch.setattr(choice, "try_kernel", tried)
    kernels = machine.choose(window=16)
    assert f"not flash2: it does not run here (RuntimeError: {found}" in kernels.choices[0]
    assert kernels.names["attention"] == "sdpa"
    encoder = tiny_encoder(seed=1)
    kernels.apply_(encoder)
    monkeypatch.setattr(attention, "suits_flash", lambda *_: True)
    monkeypatch.setattr(attention, "flash_kernel", lambda: _called)
    segments_BS = torch.ones(2, 16, dtype=torch.int64)
    halves = [SegmentLayout.from_segments(segments_BS[:1]) for _ in range(2)]
    for kind in (*AttentionKind, MixedRows(*halves)):
        _loss(encoder, torch.zeros_like(segments_BS), kind)
    # A model that no run has chosen for looks for a kernel itself.
    with pytest.raises(AssertionError, match="a flash kernel was called"):
        _loss(tiny_encoder(seed=1), torch.zeros_like(segments_BS))


def _called(*_: Any) -> Tensor:
    raise AssertionError("a flash kernel was called")


@pytest.mark.parametrize(("dtype", "head_size"), [(torch.float32, 64), (torch.bfloat16, 60), (torch.bfloat16, 264)])
def test_where_no_flash_kernel_can_run_it_is_plain_torch(dtype: torch.dtype, head_size: int, machine: _Machine) -> None:
    machine.modules = _BOTH
    kernels = machine.choose(dtype=dtype, head_size=head_size)
    assert kernels.attention is None
    assert kernels.choices[0].startswith("attention kernel sdpa (not flash3: it needs bf16, heads of a width")
    assert kernels.choices[0].count("; not ") == 1


def test_one_that_is_named_is_taken(machine: _Machine) -> None:
    machine.modules = _BOTH
    assert machine.choose("flash2").choices == ("attention kernel flash2",)
    assert machine.activated == []
    assert machine.choose("flash4").attention is torch_flash
    assert machine.activated == ["FA4"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("flash3", "no module flash_attn_interface (to install it: the wheels at download.pytorch.org/whl/"),
        ("flash4", "no module flash_attn.cute (to install it: pip install 'encoder-pretraining-toolkit[flash4]')."),
    ],
)
def test_one_that_is_named_and_missing_is_an_error(name: AttentionKernel, found: str, machine: _Machine) -> None:
    message = re.escape(f'train.attention_kernel="{name}" cannot run here: {found}')
    with pytest.raises(SettingsError, match=message + r".*\nLeave it unset"):
        machine.choose(name)


@pytest.mark.parametrize(
    ("blocks", "weights", "products"),
    [
        ("compiled", "whole", joined_products),
        ("eager", "whole", separate_products),
        ("compiled", "partitioned", separate_products),
    ],
)
@pytest.mark.usefixtures("machine")
def test_products_are_joined_in_graphs_of_whole_weights(blocks: str, weights: str, products: Products) -> None:
    options: Any = {"blocks": blocks, "weights": weights, "head_size": 64}
    assert Kernels.choose(_GPU, torch.bfloat16, **options).products is products
    names = {"attention": "sdpa", "blocks": blocks}
    assert Kernels.choose(torch.device("cpu"), torch.bfloat16, **options) == Kernels(None, separate_products, (), names)


def test_on_a_cpu_there_is_nothing_to_name() -> None:
    with pytest.raises(SettingsError, match='"flash2" cannot run here: it needs a GPU, and this run is on the cpu'):
        Kernels.choose(
            torch.device("cpu"), torch.bfloat16, blocks="compiled", weights="whole", head_size=64, attention="flash2"
        )


def test_every_block_computes_with_them() -> None:
    encoder = tiny_encoder(seed=1, num_hidden_layers=3)
    Kernels(torch_flash, joined_products, ()).apply_(encoder)
    attentions = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
    assert [module.kernel for module in attentions] == [torch_flash] * 3
    users = [module for module in encoder.modules() if isinstance(module, SelfAttention | FeedForward)]
    assert [module.products for module in users] == [joined_products] * 6


@pytest.mark.parametrize("options", [{}, *MODEL_OPTIONS.values()], ids=["plain", *MODEL_OPTIONS])
def test_joined_products_are_the_separate_ones(options: dict[str, Any]) -> None:
    """Loss and gradients in fp64; as many operations; names are those of the separate ones."""
    joined, separate = (tiny_encoder(seed=1, dtype=torch.float64, **options) for _ in range(2))
    Kernels(None, joined_products, ()).apply_(joined)
    assert list(joined.state_dict()) == list(separate.state_dict())
    ids_BS = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(0))
    counted, losses = [], []
    for encoder in (joined, separate):
        with FlopCounterMode(display=False) as counter:
            losses.append(_loss(encoder, ids_BS))
            losses[-1].backward()  # type: ignore[no-untyped-call]
        counted.append((counter.get_total_flops(), counter.get_flop_counts()["Global"][torch.ops.aten.mm]))
    assert counted[0] == counted[1]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    for ours, theirs in zip(joined.parameters(), separate.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_joined_products_are_fewer() -> None:
    """Of a block: 7 products each way, of which 3 and 2 become one: 4, with two for the gradients of each."""
    calls = []
    for products in (joined_products, separate_products):
        encoder = tiny_encoder(seed=1, num_hidden_layers=3)
        Kernels(None, products, ()).apply_(encoder)
        with _Products() as counted:
            _loss(encoder, torch.zeros(2, 16, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
        calls.append(counted.count)
    assert calls[1] - calls[0] == 3 * 3 * (7 - 4)


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return operator(*args, **(kwargs or {}))


def _loss(
    encoder: Encoder, ids_BS: torch.Tensor, kind: AttentionKind | MixedRows = AttentionKind.BIDIRECTIONAL
) -> torch.Tensor:
    positions_N = torch.arange(0, ids_BS.numel(), 3)
    loss: torch.Tensor = encoder(
        ids_BS, torch.ones_like(ids_BS), kind,
        positions_N=positions_N, labels_N=ids_BS.flatten()[positions_N], scale=0.1,
    )  # fmt: skip
    return loss


@pytest.fixture(autouse=True)
def _through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.model.layers._has_slow_mkl", lambda: False)
