"""Which attention kernel a run takes, on GPUs and with packages that are made up."""

import re
from collections.abc import Iterator

import pytest
import torch

from toolkit.core.errors import SettingsError
from toolkit.model.config import AttentionKernel
from toolkit.model.encoder import SelfAttention
from toolkit.model.kernels import choice, flash
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.flash import torch_flash
from toolkit.testing.models import tiny_encoder

_GPU = torch.device("cuda", 0)


class _Machine:
    """A GPU, what is installed beside it, and what was put in the place of torch's operator."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.capability, self.modules, self.activated = (9, 0), set[str](), list[str]()
        self.registered, self.has_torchs = ["FA3", "FA4"], True
        for module in (choice, flash):
            patch.setattr(module, "capability", lambda device: self.capability)
        patch.setattr(choice, "_is_installed", lambda module: module in self.modules)
        patch.setattr(choice, "flash_attn_kernel", lambda: torch_flash)
        patch.setattr(torch.nn.attention, "list_flash_attention_impls", lambda: self.registered)
        patch.setattr(torch.nn.attention, "activate_flash_attention_impl", self.activated.append)
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: self.has_torchs)

    def choose(
        self, attention: AttentionKernel | None = None, *, dtype: torch.dtype = torch.bfloat16, head_size: int = 64
    ) -> Kernels:
        return Kernels.choose(_GPU, dtype, head_size=head_size, attention=attention)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Machine]:
    return _Machine(monkeypatch)


_NO_3 = (
    "not flash3: no module flash_attn_interface (to install it: the wheels at "
    "download.pytorch.org/whl/cu130/flash-attn-3)"
)
_NO_4 = "not flash4: no module flash_attn.cute (to install it: pip install 'encoder-pretraining-toolkit[flash4]')"


@pytest.mark.parametrize(
    ("capability", "modules", "line", "activated"),
    [
        ((9, 0), {"flash_attn_interface", "flash_attn.cute"}, "attention kernel flash3", ["FA3"]),
        ((9, 0), {"flash_attn.cute"}, f"attention kernel flash4 ({_NO_3})", ["FA4"]),
        ((9, 0), {"flash_attn"}, f"attention kernel flash2 ({_NO_3}; {_NO_4})", []),
        (
            (10, 0),
            {"flash_attn_interface", "flash_attn.cute"},
            "attention kernel flash4 (not flash3: it needs compute capability 9.x, found 10.0)",
            ["FA4"],
        ),
        (
            (8, 0),
            {"flash_attn_interface", "flash_attn.cute"},
            "attention kernel flash2 (not flash3: it needs compute capability 9.x, found 8.0; "
            "not flash4: it needs compute capability 9.x or 10.x, found 8.0)",
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
    assert machine.activated == activated


def test_a_torch_without_flash_attention_takes_the_package(machine: _Machine) -> None:
    machine.has_torchs, machine.modules = False, {"flash_attn"}
    (line,) = machine.choose().choices
    assert line.startswith("attention kernel flash-attn (")
    assert line.endswith("not flash2: this torch was built without it)")


def test_a_torch_that_knows_no_others_takes_its_own(machine: _Machine) -> None:
    machine.registered, machine.modules = [], {"flash_attn_interface", "flash_attn.cute"}
    (line,) = machine.choose().choices
    assert line.count(f"torch {torch.__version__} does not know it") == 2
    assert (line.split(" (")[0], machine.activated) == ("attention kernel flash2", [])


def test_a_package_that_does_not_load_is_passed_over(machine: _Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def activate(name: str) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activate)
    machine.modules = {"flash_attn_interface"}
    (line,) = machine.choose().choices
    assert line.startswith("attention kernel flash2 (not flash3: its module does not load (libcudart.so.13: cannot")


@pytest.mark.parametrize(("dtype", "head_size"), [(torch.float32, 64), (torch.bfloat16, 60), (torch.bfloat16, 264)])
def test_where_no_flash_kernel_can_run_it_is_plain_torch(dtype: torch.dtype, head_size: int, machine: _Machine) -> None:
    machine.modules = {"flash_attn_interface", "flash_attn.cute", "flash_attn"}
    kernels = machine.choose(dtype=dtype, head_size=head_size)
    assert kernels.attention is None
    assert kernels.choices[0].startswith("attention kernel sdpa (not flash3: it needs bf16, heads of a width")
    assert kernels.choices[0].count("; not ") == 3


def test_one_that_is_named_is_taken(machine: _Machine) -> None:
    machine.modules = {"flash_attn_interface", "flash_attn.cute"}
    assert machine.choose("flash2").choices == ("attention kernel flash2",)
    assert machine.activated == []
    assert machine.choose("flash4").attention is torch_flash
    assert machine.activated == ["FA4"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("flash3", "no module flash_attn_interface (to install it: the wheels at download.pytorch.org/whl/"),
        ("flash4", "no module flash_attn.cute (to install it: pip install 'encoder-pretraining-toolkit[flash4]')."),
        ("flash-attn", "no module flash_attn (to install it: pip install flash-attn)."),
    ],
)
def test_one_that_is_named_and_missing_is_an_error(name: AttentionKernel, found: str, machine: _Machine) -> None:
    message = re.escape(f'train.attention_kernel="{name}" cannot run here: {found}')
    with pytest.raises(SettingsError, match=message + r".*\nLeave it unset"):
        machine.choose(name)


def test_on_a_cpu_there_is_nothing_to_choose() -> None:
    assert Kernels.choose(torch.device("cpu"), torch.bfloat16, head_size=64) == Kernels(None, ())
    with pytest.raises(SettingsError, match='"flash2" cannot run here: it needs a GPU, and this run is on the cpu'):
        Kernels.choose(torch.device("cpu"), torch.bfloat16, head_size=64, attention="flash2")


def test_every_block_computes_with_it() -> None:
    encoder = tiny_encoder(seed=1, num_hidden_layers=3)
    Kernels(torch_flash, ()).apply_(encoder)
    kernels = [module.kernel for module in encoder.modules() if isinstance(module, SelfAttention)]
    assert kernels == [torch_flash] * 3
