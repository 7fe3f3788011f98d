"""The code that torch.compile generates for a GPU, on a machine without one: kernels, with their loads and stores.

Blocks and loss are traced with fake tensors of the CPU, since a torch built without CUDA cannot trace others. Each
graph is then given inputs on a made-up H200 and goes through Inductor up to its source, which is read and never run.
Neither CUDA nor triton is needed, and no file of triton's may be importable: torch would ask it for a driver.
`tests/model/test_gpu_code.py` runs it in a process of its own, since torch remembers answers.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo import device_interface
from torch._guards import detect_fake_mode
from torch._inductor import scheduler
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton

from toolkit.core.types import AttentionKind
from toolkit.model import model_settings
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.encoder import Encoder, ForwardContext
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.cross_entropy_forms import Compiled, VocabularyColumns, compiled_parts
from toolkit.model.kernels.flash import torch_flash
from toolkit.model.layers import joined_products
from toolkit.model.segments import SegmentLayout

_CUDA = torch.device("cuda", 0)
_H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    total_memory=150_000_000_000,
    L2_cache_size=60 << 20,
    regs_per_multiprocessor=65_536,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    gcnArchName="",
)
# The bytes of a kernel's arguments are in its source only where somebody measures them.
_CONFIG = {"fx_graph_cache": False, "compile_threads": 1, "profile_bandwidth": True}
_PASSED_ON = ("is_backward", "is_inference", "static_input_idxs", "graph_id")
_KERNEL = re.compile(r"async_compile\.triton\('triton_(\w+?)_fused_\w*', '''(.*?)'''", re.DOTALL)
_KINDS = {"poi": "pointwise", "red": "reduction", "per": "reduction held at once", "for": "copies"}
_CALL = re.compile(r"^ +(?:\w+ = )?(?:extern_kernels|torch\.ops\.aten|aten)\.(\w+)(?:\.\w+)?\(", re.MULTILINE)
_ROWS, _LENGTH, _CUT = 12, 2048, 700
_SHARE = 0.4
_TARGETS, _VOCABULARY = 9728, 128_256
# Of each: its name, the preset, changes of it, the kind, and layers that are graphs of their own, by title.
_TWO_LAYERS = {0: "block", 1: "last block"}
_MODERNBERT = {0: "first block", 1: "window block", 3: "full block", 6: "last block"}
_HEAD_NORMS = {"qk_norm": True, "qkv_bias": True}
_CASES: tuple[tuple[str, str, dict[str, Any], AttentionKind, dict[int, str]], ...] = (
    ("210m", "210m", {}, AttentionKind.BIDIRECTIONAL, _TWO_LAYERS),
    ("210m", "210m", {}, AttentionKind.CAUSAL, _TWO_LAYERS),
    ("1b", "1b", {}, AttentionKind.BIDIRECTIONAL, _TWO_LAYERS),
    ("modernbert-base", "modernbert-base", {}, AttentionKind.BIDIRECTIONAL, _MODERNBERT),
    ("610m with head norms and biases", "610m", _HEAD_NORMS, AttentionKind.BIDIRECTIONAL, _TWO_LAYERS),
)


@dataclass(frozen=True)
class Graph:
    """One graph's source."""

    name: str
    source: str

    def lines(self) -> Iterator[str]:
        """The graph's calls, and each of its kernels with loads and stores in its source and bytes of its arguments."""
        calls = _CALL.findall(self.source)
        counted = ", ".join(f"{calls.count(name)} {name}" for name in sorted(set(calls)))
        kernels = _KERNEL.findall(self.source)
        yield f"{self.name}: {len(kernels)} kernels" + (f", {counted}" if counted else "")
        for kind, source in kernels:
            loads, stores = (len(re.findall(rf"\btl\.{name}\(", source)) for name in ("load", "store"))
            loops = len(re.findall(r"^ *for ", source, re.MULTILINE))
            (gigabytes,) = re.findall(r"'kernel_num_gb': ([\d.e-]+)", source)
            looped = f", {loops} loop" + ("s" if loops > 1 else "") if loops else ""
            yield f"  {_KINDS[kind]}: {loads} loads, {stores} stores{looped}, {1e3 * float(gigabytes):.1f} MB"


class _GeneratedError(Exception):
    """Ends a compilation, which would go on to load what was generated."""


class Generator:
    """A backend of torch.compile that keeps the source of each graph and runs the graph as it was traced."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.title = ""

    def __call__(
        self, module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None
    ) -> Callable[..., Any]:
        patches = _CONFIG | (options or {})
        # torch's own annotations know no compiler that returns a plain function, which its callers take all the same.
        compiled: Any = compile_fx(module, list(inputs), inner_compile=self._generate, config_patches=patches)
        return cast("Callable[..., Any]", compiled)

    def _generate(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        mode, moved = detect_fake_mode(inputs), copy.deepcopy(module)
        assert mode is not None
        with mode:
            on_gpu = [_on_gpu(value) if isinstance(value, Tensor) else value for value in inputs]
        placeholders = moved.graph.find_nodes(op="placeholder")
        for node, value in zip(placeholders, on_gpu, strict=True):
            node.meta["val"] = value
        for node in moved.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": _CUDA}

        def keep(lowering: GraphLowering) -> None:
            direction = "backward" if options.get("is_backward") else "forward"
            self.graphs.append(Graph(f"{self.title}, {direction}", lowering.codegen()[0].value))
            raise _GeneratedError

        with _made_up_gpu(), mock.patch.object(GraphLowering, "_compile_to_module", keep):
            try:
                compile_fx_inner(moved, on_gpu, **{name: options[name] for name in _PASSED_ON if name in options})
            except InductorError as error:
                if not isinstance(error.inner_exception, _GeneratedError):
                    raise
        return make_boxed_func(module.forward)


def _on_gpu(value: Tensor) -> Tensor:
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_CUDA)


class _Guard(nullcontext[None]):
    """In the place of `torch.cuda.device`."""


def _made_up_gpu() -> ExitStack:
    """What Inductor asks torch of a GPU and of triton, answered."""
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": False, "is_bf16_supported": True, "is_current_stream_capturing": False,
        "device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "get_device_properties": _H200,
        "set_device": None, "synchronize": None, "get_rng_state": torch.get_rng_state(), "set_rng_state": None,
        "_lazy_init": None,
    }  # fmt: skip
    stack = ExitStack()
    replaced: list[tuple[Any, str, Any]] = [(torch.cuda, name, answer) for name, answer in answers.items()]
    interface, worker = device_interface.CudaInterface, device_interface.CudaInterface.Worker
    asked = ("current_device", "get_device_properties")
    of_interface = (*asked, "device_count", "is_bf16_supported", "set_device")
    replaced += [(interface, name, answers[name]) for name in of_interface]
    replaced += [(interface, name, 0) for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream")]
    replaced += [(worker, name, answers[name]) for name in asked]
    replaced += [(scheduler, "has_triton", True), (_triton, "triton_hash_with_backend", "")]
    replaced += [(fake_tensor, "init_gpu_context", None), (torch._C, "_cuda_getCurrentRawStream", 0)]
    for owner, name, answer in replaced:
        stack.enter_context(mock.patch.object(owner, name, return_value=answer, create=owner is torch._C))
    for owner in (interface, torch.cuda):
        stack.enter_context(mock.patch.object(owner, "device", _Guard))
    stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
    return stack


def generate_blocks(
    name: str, preset: str, changes: dict[str, Any], kind: AttentionKind, titles: dict[int, str]
) -> list[Graph]:
    """Of some layers of a preset and what is around them, both ways: 12 rows of 2,048, targets at 40 %, padding."""
    settings, generator = model_settings(preset, num_hidden_layers=max(titles) + 1, **changes), Generator()
    positions_N = np.flatnonzero(np.random.default_rng(0).random(_ROWS * _LENGTH) < _SHARE)
    positions_N = positions_N[: len(positions_N) // 256 * 256]
    segments_BS = np.ones((_ROWS, _LENGTH), dtype=np.int64)
    segments_BS[:, _CUT:] = 2
    layout = SegmentLayout.from_segments(segments_BS, positions_N=positions_N)
    assert layout.targets is not None
    torch._dynamo.reset()
    with (
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        _compiled_by(generator),
    ):
        # Weights that are fake are not converted.
        torch.set_default_dtype(torch.bfloat16)
        encoder = Encoder(settings)
        torch.set_default_dtype(torch.float32)
        Kernels(torch_flash, joined_products, ()).apply_(encoder)
        compile_blocks_(encoder)
        layout = replace(
            layout,
            rope_positions_T=mode.from_tensor(layout.rope_positions_T),
            bounds_M=mode.from_tensor(layout.bounds_M),
            is_real_T=mode.from_tensor(layout.is_real_T),
            targets=replace(layout.targets, bounds_M=mode.from_tensor(layout.targets.bounds_M)),
        )
        positions = mode.from_tensor(torch.from_numpy(positions_N))
        contexts = ForwardContext.by_layer_type(settings, layout, kind, positions)
        all_rows, target_rows = _ROWS * _LENGTH, len(positions_N)
        modules: list[tuple[str, torch.nn.Module, int, tuple[ForwardContext, ...]]] = [
            (title, encoder.model.layers[number], all_rows, (contexts[settings.layer_types[number]],))
            for number, title in titles.items()
        ]
        modules += [
            ("embedding norm", encoder.model.embed_norm, all_rows, ()),
            ("final norm", encoder.model.norm, target_rows, ()),
            ("dense head", encoder.head, target_rows, ()),
        ]
        for title, module, rows, context in modules:
            if not isinstance(module, torch.nn.Identity):
                generator.title = f"{name} {kind}, {title}"
                hidden = torch.empty((rows, settings.hidden_size), dtype=torch.bfloat16, requires_grad=True)
                module(hidden, *context).sum().backward()
    return generator.graphs


def generate_loss(vocabulary: int) -> list[Graph]:
    """Of the loss between the products of the head: with the gradient, and for evaluation."""
    generator = Generator()
    torch._dynamo.reset()
    compiled_parts.cache_clear()
    with FakeTensorMode(), _compiled_by(generator):
        logits_NV = torch.empty(_TARGETS, vocabulary, dtype=torch.bfloat16)
        labels_N = torch.empty(_TARGETS, dtype=torch.int64)
        for generator.title, z_loss in (("loss", 0.0), ("loss, z-loss", 1e-4)):
            Compiled().losses_and_gradient(logits_NV, labels_N, VocabularyColumns(), z_loss)
        generator.title = "loss, evaluation"
        Compiled().losses(logits_NV, labels_N, VocabularyColumns())
    return generator.graphs


def _compiled_by(generator: Generator) -> Any:
    return mock.patch("torch.compile", partial(torch.compile, backend=generator))


def main() -> None:
    """Print the table; with an argument, also write each graph's source to that folder."""
    graphs = [graph for case in _CASES for graph in generate_blocks(*case)]
    for graph in [*graphs, *generate_loss(_VOCABULARY)]:
        print(*graph.lines(), sep="\n", flush=True)
        for folder in sys.argv[1:]:
            (Path(folder) / f"{graph.name}.py").write_text(graph.source)
