"""Attention kernels for `benchmarks/gpu.py`: each on the shapes, layouts and kinds of training, with its error."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from gpu_scale import Job
from gpu_timing import Row, Rows, attempt, device, median_ms, random, relative_error, tera_per_second
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.model.attention import attend, attend_by_flash
from toolkit.model.kernels import flash
from toolkit.model.segments import SegmentLayout

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
LAYOUTS = ("random-cut", "documents")
# Two products forward; five backward, one of which makes the scores again.
_FORWARD_FLOPS, _BACKWARD_FLOPS = 4, 10
_TARGETS_SHARE = 0.4


@dataclass(frozen=True, eq=False)
class Case:
    """One micro-batch."""

    heads: tuple[int, int, int]
    """H, K, E."""
    segments_BS: np.ndarray[Any, np.dtype[np.int64]]
    layout: SegmentLayout
    kind: AttentionKind
    backend: str
    """Of torch.compile."""
    positions_N: np.ndarray[Any, np.dtype[np.int64]]
    """Of the queries, ascending."""

    @property
    def is_causal(self) -> bool:
        """True if a position sees only what is before it."""
        return self.kind is AttentionKind.CAUSAL

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs that see each other."""
        if self.is_causal:
            return sum(length * (length + 1) // 2 for length in self.layout.lengths)
        segments_T = _numbered(self.segments_BS)
        real_N = self.positions_N[self.segments_BS.ravel()[self.positions_N] != 0]
        return int(np.bincount(segments_T)[segments_T[real_N]].sum())

    def at_targets(self) -> "Case":
        """The same with queries at 40 % of the positions, as the last block has them under MLM."""
        is_target_T = np.random.default_rng(1).random(self.segments_BS.size) < _TARGETS_SHARE
        positions_N = np.flatnonzero(is_target_T & (self.segments_BS.ravel() != 0))
        layout = SegmentLayout.from_segments(self.segments_BS, device=device(), positions_N=positions_N)
        return replace(self, layout=layout, positions_N=positions_N)


def measure_attention(job: Job) -> Rows:
    """Milliseconds and useful TFLOP/s of each kernel that is installed; its errors against fp64 on the first row."""
    yield from _measure_contenders(job, LAYOUTS, tuple(CONTENDERS))


def measure_run_kernels(job: Job) -> Rows:
    """The same of kernels that a run may take, on the rows of a run."""
    yield from _measure_contenders(job, LAYOUTS[:1], _OF_RUNS)


def _measure_contenders(job: Job, layouts: Sequence[str], contenders: Sequence[str]) -> Rows:
    scale = job.scale
    shapes = dict.fromkeys(
        (s.num_attention_heads, s.key_value_heads, s.head_size) for s in scale.kernel_models.values()
    )
    for layout_name, heads, kind in product(layouts, shapes, AttentionKind):
        segments_BS = segments_of(layout_name, rows=scale.rows, length=scale.row_length)
        layout = SegmentLayout.from_segments(segments_BS, device=device())
        case = Case(heads, segments_BS, layout, kind, scale.compile_backend, np.arange(segments_BS.size))
        generator_state = torch.random.get_rng_state()
        for name in contenders:
            if case.is_causal and name in (*ONE_LAYOUT, *AT_TARGETS):
                continue
            if name in ONE_LAYOUT and layout_name != LAYOUTS[0]:
                continue
            torch.random.set_rng_state(generator_state)
            row = {"what": "attention", "kernel": name, "heads": "/".join(map(str, heads)), "layout": layout_name}
            measured = case.at_targets() if name in AT_TARGETS else case
            work = partial(_measure, measured, CONTENDERS[name], repeats=scale.repeats)
            yield attempt(row | {"kind": str(kind)}, work)


def segments_of(name: str, *, rows: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Segment ids, (B, S), as the windows of that name have them: 0 is padding."""
    generator = np.random.default_rng(0)
    segments_BS = np.ones((rows, length), dtype=np.int64)
    if name == "random-cut":
        cuts_B = generator.integers(1, length, rows)
        segments_BS += np.arange(length) >= cuts_B[:, None]
    if name == "documents":
        for segments_S in segments_BS:
            lengths = np.clip(generator.lognormal(np.log(length / 5), 1.0, 200).astype(int), 2, length)
            ends = np.cumsum(lengths)
            segments_S[:] = 1 + np.searchsorted(ends, np.arange(length), side="right")
            # A document that does not fit begins another row: the end of this one is padding.
            segments_S[ends[ends <= length].max(initial=length // 2) :] = 0
    return segments_BS


def _measure(case: Case, contender: Callable[[Case], Iterator[Attention]], *, repeats: int) -> Row:
    num_heads, num_key_value_heads, width = case.heads
    num_positions, num_queries = case.segments_BS.size, len(case.positions_N)
    shapes = ((num_queries, num_heads), (num_positions, num_key_value_heads), (num_positions, num_key_value_heads))
    inputs = [random(*shape, width).requires_grad_() for shape in shapes]
    d_output = random(num_queries, num_heads, width)
    with contextmanager(contender)(case) as attention:
        output = attention(*inputs)
        gradients = torch.autograd.grad(output, inputs, d_output, retain_graph=True)
        row: Row = {"forward_ms": median_ms(lambda: attention(*inputs), repeats=repeats)}
        backward = partial(torch.autograd.grad, output, inputs, d_output, retain_graph=True)
        row["backward_ms"] = median_ms(backward, repeats=repeats)
    useful = case.pairs * num_heads * width
    row["forward_tflops"] = tera_per_second(_FORWARD_FLOPS * useful, row["forward_ms"])
    row["backward_tflops"] = tera_per_second(_BACKWARD_FLOPS * useful, row["backward_ms"])
    expected = _expected(case, [part.detach() for part in inputs], d_output)
    # Padding is 0 in all of ours; what a bare kernel makes of it is not compared.
    is_real = torch.from_numpy(case.segments_BS[0] != 0).to(output.device)
    is_real_query = is_real[_queries_of_first_row(case, output.device)]
    compared = {"output": is_real_query, "d_query": is_real_query, "d_key": is_real, "d_value": is_real}
    for (name, rows), found, right in zip(compared.items(), (output, *gradients), expected, strict=True):
        row[f"{name}_error"] = relative_error(found.detach()[: len(rows)][rows], right[rows])
    return row


def _queries_of_first_row(case: Case, device: torch.device) -> Tensor:
    return torch.from_numpy(case.positions_N[case.positions_N < case.segments_BS.shape[1]]).to(device)


def _expected(case: Case, inputs: list[Tensor], d_output: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of the first row by the definition in fp64; segments do not leave a row."""
    length = case.segments_BS.shape[1]
    queries = _queries_of_first_row(case, inputs[0].device)
    parts = zip(inputs, (len(queries), length, length), strict=True)
    query, key, value = (part[:count].double().requires_grad_() for part, count in parts)
    group = case.heads[0] // case.heads[1]
    segments_S = torch.from_numpy(case.segments_BS[0]).to(query.device)
    is_visible = segments_S[:, None] == segments_S[None, :]
    if case.is_causal:
        is_visible = is_visible.tril()
    is_visible = is_visible[queries]
    scores = torch.einsum("the,she->hts", query, key.repeat_interleave(group, 1)) / query.shape[2] ** 0.5
    probs = scores.masked_fill(~is_visible, float("-inf")).softmax(-1)
    output = torch.einsum("hts,she->the", probs, value.repeat_interleave(group, 1))
    is_real = (segments_S != 0)[queries, None, None]
    gradients = torch.autograd.grad(output, (query, key, value), d_output[: len(queries)].double() * is_real)
    return (output.detach(), *gradients)


def _project(case: Case) -> Iterator[Attention]:
    yield lambda query, key, value: attend(query, key, value, case.kind, case.layout)


def _at_targets(case: Case) -> Iterator[Attention]:
    """Calls of the last block: fewer queries than keys, and in some segments none."""
    if (kernel := flash.flash_kernel()) is None:
        raise NotImplementedError("no flash kernel")
    positions_N = torch.from_numpy(case.positions_N).to(device())

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_by_flash(query, key, value, case.kind, case.layout, kernel=kernel, positions_N=positions_N)

    yield attention


def _flash_2(case: Case) -> Iterator[Attention]:
    """Torch's own, whose kernel shares heads; older versions do so unasked."""
    from torch.nn.attention.varlen import varlen_attn

    layout, options = case.layout, {"window_size": (-1, 0) if case.is_causal else (-1, -1)}
    if case.heads[0] != case.heads[1] and "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bounds, longest = layout.bounds_M, layout.row_length
        found = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)
        assert isinstance(found, Tensor)
        return found

    yield attention


def _activated(case: Case, *, implementation: str) -> Iterator[Attention]:
    """Torch's operator with another package's kernel."""
    from torch.nn import attention

    attention.activate_flash_attention_impl(implementation)
    try:
        yield from _flash_2(case)
    finally:
        getattr(attention, "restore_flash_attention_impl", lambda: None)()


def _flex(case: Case) -> Iterator[Attention]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    segments_T = torch.from_numpy(_numbered(case.segments_BS)).to(case.layout.bounds_M.device)

    def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_same = segments_T[query] == segments_T[key]
        return is_same & (query >= key) if case.is_causal else is_same

    size = segments_T.numel()
    # Each case is compiled, and Dynamo would give up at the ninth.
    torch._dynamo.reset()
    mask = torch.compile(create_block_mask, backend=case.backend)(
        is_visible, None, None, size, size, device=str(segments_T.device)
    )
    compiled = torch.compile(flex_attention, backend=case.backend)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = (part.transpose(0, 1)[None] for part in (query, key, value))
        found = compiled(*parts, block_mask=mask, enable_gqa=query.shape[1] != key.shape[1])
        return found[0].transpose(0, 1)

    yield attention


def _numbered(segments_BS: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Segment ids that differ from row to row, (T,)."""
    rows_B1 = np.arange(len(segments_BS))[:, None]
    return (segments_BS + rows_B1 * (segments_BS.max() + 1)).ravel()


CONTENDERS: dict[str, Callable[[Case], Iterator[Attention]]] = {
    "the toolkit's choice": _project,
    "queries at targets": _at_targets,
    "FA2": _flash_2,
    "FA3 through torch": partial(_activated, implementation="FA3"),
    "FA4 through torch": partial(_activated, implementation="FA4"),
    "flex": _flex,
}
_OF_RUNS = ("FA2", "FA3 through torch", "FA4 through torch", "flex", "queries at targets")
ONE_LAYOUT = ("flex",)
"""Measured bidirectional and on the first layout alone: each is compiled for half a minute."""
AT_TARGETS = ("queries at targets",)
"""Measured with queries at targets, bidirectional; the others with queries everywhere."""
