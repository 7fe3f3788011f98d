"""A made-up H100: what `torch.cuda` answers to `benchmarks/gpu.py --toy`, with tensors and kernels on the CPU.

Names are patched where torch has them, so that one that torch does not have fails here too. Runs of the toolkit stay on
the CPU (`DS_ACCELERATOR=cpu`).
"""

import inspect
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import flex_attention, varlen
from torch.nn.functional import scaled_dot_product_attention

from tests.support.kernels import plain_flash
from toolkit.core.types import AttentionKind
from toolkit.model.kernels import flash

NAME, MEMORY = "NVIDIA H100 80GB HBM3", 81_559 << 20
_SMI = f"#!/bin/sh\necho '{NAME}, 580.0, 1980 MHz, 1980 MHz, 2619 MHz, 700.00 W, 90.00 W, 30, 81559 MiB'\n"


class Event:
    """A mark in time, by the host's clock."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Set the mark."""
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds to a later mark."""
        return 1e3 * (end._seconds - self._seconds)


@contextmanager
def stub_gpu() -> Iterator[None]:
    """Answer as an H100 with torch's own attention kernel; within."""
    varlen_attn = inspect.signature(varlen.varlen_attn)

    def own_attention(*arguments: Any, **named: Any) -> Tensor:
        # An argument that this torch does not know is a TypeError.
        given = varlen_attn.bind(*arguments, **named).arguments
        kind = AttentionKind.CAUSAL if given["window_size"] == (-1, 0) else AttentionKind.BIDIRECTIONAL
        query, key, value = (given[name] for name in ("query", "key", "value"))
        bounds = (given["cu_seq_q"], given["cu_seq_k"], given["max_q"], given["max_k"])
        return plain_flash(query, key, value, *bounds, kind)

    def own_flex(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, enable_gqa: bool) -> Tensor:
        positions = torch.arange(query.shape[2])
        visible = block_mask.mask_mod(0, 0, positions[:, None], positions)
        return scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=enable_gqa)

    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "Event": Event,
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda: None,
            "max_memory_allocated": lambda: 1 << 30,
            "max_memory_reserved": lambda: 2 << 30,
            "get_device_name": lambda: NAME,
            "get_device_properties": lambda number: SimpleNamespace(total_memory=MEMORY),
        },
        torch.cuda.nccl: {"version": lambda: (2, 28, 9)},
        varlen: {"varlen_attn": own_attention},
        flex_attention: {"flex_attention": own_flex},
        torch.nn.attention: {"activate_flash_attention_impl": _without},
        flash: {"flash_kernel": lambda: plain_flash},
        torch.profiler.profile: {"export_chrome_trace": _with_kernels(torch.profiler.profile.export_chrome_trace)},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "nvidia-smi").write_text(_SMI)
        (folder / "nvidia-smi").chmod(0o755)
        stack.enter_context(mock.patch.dict(os.environ, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}"))
        for owner, named in answers.items():
            stack.enter_context(mock.patch.multiple(owner, **named))
        yield


def _without(implementation: str) -> None:
    raise ImportError(f"no package with {implementation}")


def _with_kernels(export: Any) -> Any:
    """The export of a trace, with a kernel and its launch for each operator of torch that is inside no other."""

    def exported(profile: Any, path: str) -> None:
        export(profile, path)
        trace = json.loads(Path(path).read_text())
        ends = dict[Any, float]()
        operators = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
        for number, event in enumerate(sorted(operators, key=lambda event: (event["ts"], -event["dur"]))):
            if not event["name"].startswith("aten::") or event["ts"] < ends.get(event["tid"], 0.0):
                continue
            ends[event["tid"]] = event["ts"] + event["dur"]
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": number}}
            kernel = {"cat": "kernel", "name": event["name"], "tid": 7, "args": {"correlation": number}}
            trace["traceEvents"] += [{**event, **launch, "dur": 0.5}, {**event, **kernel}]
        Path(path).write_text(json.dumps(trace))

    return exported
