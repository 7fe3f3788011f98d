"""A run tries compiler and kernel before it trains; what fails on one rank is passed over by all, and told once."""

import contextlib
import io
import os
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from tests.support.kernels import plain_flash
from tests.support.runs import MODERNBERT, RunCase, write_run
from toolkit.checkpoint.manifest import read_manifest
from toolkit.core.errors import SettingsError
from toolkit.model import attention, compiled_blocks
from toolkit.model.compiled_blocks import reason_against_compiling
from toolkit.model.kernels import choice
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.cross_entropy_forms import CrossEntropyForm
from toolkit.model.kernels.trial import try_kernel
from toolkit.model.layers import apply_rope, separate_products
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings
from toolkit.training import set_up
from toolkit.training.memory_trial import torch_errors_explained

_OVERRIDES = ("schedule.0.steps=2", "schedule.1.steps=2", "lr.warmup_steps=1", "lr.decay_steps=1")


@dataclass(frozen=True)
class NoCompiler(RunCase):
    """A run on ranks of which the last has no C++ compiler; returns what it told as well."""

    cache: str = ""
    """What the compiler's own cache holds would hide that there is none."""

    def __call__(self):
        from torch._inductor import config

        told, is_last = io.StringIO(), int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        with (
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=self.cache),
            mock.patch.object(config.cpp, "cxx", (None, "/nonexistent")),
            contextlib.nullcontext() if is_last else mock.patch.object(set_up, "reason_against_compiling", _works),
            contextlib.redirect_stdout(told),
        ):
            return *RunCase.__call__(self), told.getvalue().splitlines()


def _works(*_, **__):
    return None


def _is_so(*_):
    return True


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_without_a_compiler_trains_on(tmp_path, world_size):
    cases = []
    for wanted in ("true", "false"):
        (tmp_path / wanted).mkdir()
        overrides = (*_OVERRIDES, f"train.compile={wanted}")
        file = str(write_run(tmp_path / wanted))
        cases.append(NoCompiler(file, "zero1", overrides, cache=str(tmp_path / "cache")))
    (compiled, *others), (eager, *_) = run_distributed(cases, world_size=world_size)
    assert compiled[0] == eager[0] == "finished at step 4"
    losses = [[(line["step"], line.get("loss")) for line in metrics] for _, metrics, _ in (compiled, eager)]
    assert losses[0] == losses[1]
    whose = "" if world_size == 1 else "on rank 1, "
    reason = f"{whose}torch.compile fails (InvalidCxxCompiler: No working C++ compiler found in "
    (line,) = [line for line in compiled[2] if "eager" in line]
    assert line.startswith(f"blocks eager, not compiled: {reason}")
    assert not any("eager" in line for line in eager[2])
    assert not any("eager" in line for _, _, told in others for line in told), "told by rank 0 alone"
    manifest = read_manifest(tmp_path / "true" / "run" / "checkpoints" / "step-00000004")
    assert manifest.kernels == {"attention": "sdpa", "blocks": "eager"}


# Angles are made outside of blocks, which get tensors of the same shape however they are scaled.
_BLOCKS = {"plain": {}} | {name: options for name, options in MODEL_OPTIONS.items() if "rope_scaling" not in options}


@pytest.mark.parametrize("options", _BLOCKS.values(), ids=_BLOCKS)
def test_blocks_that_compile_have_nothing_against_them(options, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert _reason(monkeypatch, options) is None


def _rotates_without_gradient(forward, *arguments):
    def rotate(tensor_THE, rope):
        return apply_rope(tensor_THE.detach(), rope) + 0 * tensor_THE

    with mock.patch("toolkit.model.encoder.apply_rope", rotate):
        return forward(*arguments)


def _gives_no_gradient(forward, hidden_TD, *context):
    return forward(hidden_TD.detach(), *context)


@pytest.mark.parametrize(
    ("compiled", "found"),
    [
        (_rotates_without_gradient, "compiled, the gradient of model.layers.0.self_attn.q_proj.weight differs by 100%"),
        (_gives_no_gradient, "torch.compile fails (RuntimeError: "),
    ],
)
def test_blocks_that_compute_something_else_when_compiled_are_not(compiled, found, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, **_: partial(compiled, forward))
    assert _reason(monkeypatch, {}).startswith(found)


@pytest.mark.parametrize(("every", "tried"), [(1, ("full_attention",)), (2, ("sliding_attention", "full_attention"))])
def test_blocks_that_are_tried_reach_what_the_model_s_do(every, tried, monkeypatch):
    seen = []
    monkeypatch.setattr(
        compiled_blocks, "compile_blocks_", lambda encoder: seen.append(encoder.model.settings.layer_types)
    )
    assert _reason(monkeypatch, MODEL_OPTIONS["ultrabert"] | {"global_attn_every_n_layers": every}) is None
    assert seen == [tried]


def _reason(monkeypatch, options):
    # Its compiled functions are kept for the life of the process.
    monkeypatch.setattr(compiled_blocks, "Compiled", CrossEntropyForm)
    kernels = Kernels(None, separate_products, ())
    return reason_against_compiling(tiny_settings(**options), kernels, device=torch.device("cpu"), dtype=torch.float32)


def test_a_graph_that_fails_later_names_the_way_round_it():
    def backend(graph, inputs):
        raise OSError("no space left on device\nand more")

    message = r"^torch\.compile failed: OSError: no space left on device\.\nTo train without it: --set"
    with pytest.raises(SettingsError, match=message), torch_errors_explained(None):
        torch.compile(torch.sin, backend=backend)(torch.zeros(2))
    with pytest.raises(RuntimeError, match="another"), torch_errors_explained(None):
        raise RuntimeError("another")


@dataclass(frozen=True)
class WrongKernel(RunCase):
    """A run on made-up GPUs whose flash kernel, on the last rank, reads position 0 alone; returns what it told as well.

    Elsewhere it is right, until the trial is over: nothing may call it then.
    """

    def __call__(self):
        told, is_last = io.StringIO(), int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        tried, is_over = [], False

        def kernel(query_NHE, key_TKE, value_TKE, *rest):
            assert not is_over
            tried.append(rest[-1])
            return plain_flash(query_NHE, key_TKE, value_TKE[:1].expand_as(value_TKE) if is_last else value_TKE, *rest)

        def choose(device, dtype, **options):
            nonlocal is_over
            kernels = Kernels.choose(torch.device("cuda", 0), dtype, **options)
            is_over = True
            return kernels

        def try_here(_, device, *shape):
            try_kernel(kernel, torch.device("cpu"), *shape)

        with (
            mock.patch.multiple(choice, capability=lambda _: (8, 0), try_kernel=try_here),
            mock.patch.multiple(choice, suits_flash=_is_so, flash_kernel=lambda: kernel),
            mock.patch.multiple(attention, suits_flash=_is_so, flash_kernel=lambda: kernel),
            mock.patch.object(set_up, "Kernels", SimpleNamespace(choose=choose)),
            contextlib.redirect_stdout(told),
        ):
            outcome, metrics = RunCase.__call__(self)
        assert tried
        return outcome, metrics, told.getvalue().splitlines()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_whose_kernel_is_wrong_on_one_rank_trains_on_with_plain_attention(tmp_path, world_size):
    found = []
    mixed = 'schedule=[{mix=[{objective="clm", share=0.5}, {objective="mlm", share=0.5}], steps=4}]'
    overrides = (mixed, "lr.warmup_steps=1", "lr.decay_steps=1", MODERNBERT)
    for case in (WrongKernel, RunCase):
        (tmp_path / case.__name__).mkdir()
        found.append(case(str(write_run(tmp_path / case.__name__)), "zero1", overrides))
    (wrong, *others), (plain, *_) = run_distributed(found, world_size=world_size)
    assert wrong[0] == plain[0] == "finished at step 4"
    losses = [[(line["step"], line.get("loss")) for line in metrics] for _, metrics, *_ in (wrong, plain)]
    assert losses[0] == losses[1]
    whose = "" if world_size == 1 else "on rank 1, "
    found = f"not flash2: {whose}it does not run here (RuntimeError: the output of causal attention differs by"
    (line,) = [line for line in wrong[2] if "attention kernel" in line]
    assert line.startswith("attention kernel sdpa (not flash3: it needs compute capability 9.x, found 8.0; " + found)
    assert not any("attention kernel" in line for _, _, told in others for line in told), "told by rank 0 alone"
    manifest = read_manifest(tmp_path / "WrongKernel" / "run" / "checkpoints" / "step-00000004")
    assert manifest.kernels == {"attention": "sdpa", "blocks": "eager"}
