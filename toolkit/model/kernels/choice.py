"""Choice of a run's kernels: made once, from the device, the dtype and the installed packages.

On a GPU of Ampere or later, in bf16: FlashAttention-3, else torch's 2; FlashAttention-4 only if requested. torch
replaces its own operator by 3 or 4 process-wide, and checks neither the GPU nor their packages before the first call;
both are checked here, and the chosen kernel is tried first (`toolkit.model.kernels.trial`). Elsewhere, and if none
passes, attention is plain torch (`toolkit.model.attention`). All ranks use the first kernel that passes on every rank.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import torch

from toolkit.core.errors import SettingsError
from toolkit.core.text import root_cause
from toolkit.model.config import AttentionKernel
from toolkit.model.kernels.flash import FlashKernel, capability, flash_kernel, suits_flash, torch_flash
from toolkit.model.kernels.trial import try_kernel
from toolkit.model.layers import Products, joined_products, separate_products

if TYPE_CHECKING:
    from toolkit.model.encoder import Encoder

Agree = Callable[[str | None], str | None]
"""Maps this rank's reason against something, or None, to a reason of any rank, or None; collective."""


@dataclass(frozen=True)
class Kernels:
    """Kernels that a run uses.

    Attributes:
        attention: a flash kernel, inside of compiled graphs; None: plain torch, outside of them.
        products: products of weights that share an input: joined in compiled blocks on a GPU. On a CPU, one product is
            not faster, and outside of a graph its results are views, which would keep unneeded ones alive.
        choices: choices and their reasons, one line each; empty if there was nothing to choose.
        names: the choices, for manifests: `attention` (plain torch is "sdpa"), `blocks` ("eager" or "compiled").
    """

    attention: FlashKernel | None
    products: Products
    choices: tuple[str, ...]
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def choose(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        *,
        blocks: Literal["eager", "compiled"],
        weights: Literal["whole", "partitioned"],
        head_size: int,
        window: int | None = None,
        attention: AttentionKernel | None = None,
        agree: Agree = lambda reason: reason,
    ) -> "Kernels":
        """Choose kernels that run on all ranks: `attention`, or the first of `_AUTOMATIC` that does, or plain torch.

        `window` is that of the model's sliding-window layers.
        "partitioned" weights are released between modules (ZeRO-3), and used only in their own module.
        """
        is_gpu, reasons = device.type == "cuda", list[str]()
        products = joined_products if is_gpu and (blocks, weights) == ("compiled", "whole") else separate_products
        automatic = _AUTOMATIC if is_gpu else ()
        for name in automatic if attention is None else (attention,):
            if name == "sdpa":
                break
            reason = agree(_reason_against(name, device, dtype, head_size, window))
            if reason is None:
                return cls(torch_flash, products, (_described(name, reasons),), {"attention": name, "blocks": blocks})
            reasons.append(f"not {name}: {reason}")
        if attention in (None, "sdpa"):
            told = (_described("sdpa", reasons),) if is_gpu or attention is not None else ()
            return cls(None, products, told, {"attention": "sdpa", "blocks": blocks})
        raise SettingsError(
            f'train.attention_kernel="{attention}" cannot run here: {reasons[0].partition(": ")[2]}.\n'
            "Leave it unset, for the fastest kernel that can."
        )

    def uncompiled(self, reason: str) -> "Kernels":
        """The same kernels for eager blocks, if compiled ones do not run."""
        told = f"blocks eager, not compiled: {reason}"
        names = self.names | {"blocks": "eager"}
        return replace(self, products=separate_products, choices=(*self.choices, told), names=names)

    def apply_(self, encoder: "Encoder") -> None:
        """Make an encoder's blocks use these kernels, in place; call before it is compiled."""
        from toolkit.model.encoder import Block

        for layer in encoder.model.layers:
            assert isinstance(layer, Block)
            layer.self_attn.kernel = self.attention
            layer.self_attn.products = layer.mlp.products = self.products


# FlashAttention-4 compiles at its first call and is an alpha: only on request.
_AUTOMATIC: tuple[AttentionKernel, ...] = ("flash3", "flash2")
_TORCH_NAMES = {"flash3": "FA3", "flash4": "FA4"}
_GENERATIONS = {"flash3": (9,), "flash4": (9, 10)}
_MODULES = {
    "flash3": ("flash_attn_interface", "the wheels at download.pytorch.org/whl/cu130/flash-attn-3"),
    "flash4": ("flash_attn.cute", "pip install 'encoder-pretraining-toolkit[flash4]'"),
}


def _described(name: str, reasons: list[str]) -> str:
    return f"attention kernel {name}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _reason_against(
    name: AttentionKernel, device: torch.device, dtype: torch.dtype, head_size: int, window: int | None
) -> str | None:
    """Why a kernel cannot run here; None if it can: `torch_flash` then calls it from now on."""
    if device.type != "cuda":
        return f"it needs a GPU, and this run is on the {device.type}"
    major, minor = capability(device)
    if not suits_flash(device, dtype, head_size):
        return (
            "it needs bf16, heads of a width of at most 256 that 8 divides, and compute capability 8.0; found "
            f"{str(dtype).removeprefix('torch.')}, {head_size} and {major}.{minor}"
        )
    if major not in _GENERATIONS.get(name, (major,)):
        wanted = " or ".join(f"{generation}.x" for generation in _GENERATIONS[name])
        return f"it needs compute capability {wanted}, found {major}.{minor}"
    if name == "flash2" and flash_kernel() is None:
        return "this torch was built without it"
    if name in _TORCH_NAMES and _TORCH_NAMES[name] not in torch.nn.attention.list_flash_attention_impls():
        return f"torch {torch.__version__} does not know it"
    # Optional packages were built for some version of torch and may bring a compiler: finding, loading or calling them
    # may fail in any way, and other kernels can still run.
    try:
        if name in _MODULES and not _is_installed(_MODULES[name][0]):
            return "no module {} (to install it: {})".format(*_MODULES[name])
        # An earlier choice of this process may have replaced torch's operator.
        torch.nn.attention.restore_flash_attention_impl(_raise_warn=False)
        if name in _TORCH_NAMES:
            torch.nn.attention.activate_flash_attention_impl(_TORCH_NAMES[name])
        try_kernel(torch_flash, device, dtype, head_size, window)
    except Exception as error:
        torch.nn.attention.restore_flash_attention_impl(_raise_warn=False)
        return f"it does not run here ({root_cause(error)})"
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
