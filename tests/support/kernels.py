"""Kernels as plain as can be, to compare others with."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.testing.models import dense_visibility


def plain_flash(
    query_NHE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    query_bounds_M: Tensor,
    key_bounds_M: Tensor,
    longest_queries: int,
    longest_keys: int,
    kind: AttentionKind,
    window: int | None = None,
) -> Tensor:
    """What a flash kernel promises, in the plainest way: one softmax for each stretch and head."""
    mixed = []
    for stretch in _stretches(query_NHE, key_TKE, query_bounds_M, key_bounds_M, longest_queries, longest_keys):
        rows, keys, values = _heads_first(query_NHE, key_TKE, value_TKE, *stretch)
        mixed.append((_probs(rows, keys, kind, window) @ values).transpose(0, 1))
    return torch.cat(mixed)


def _stretches(
    query: Tensor, key: Tensor, query_bounds: Tensor, key_bounds: Tensor, longest_queries: int, longest_keys: int
) -> Iterator[tuple[int, int, int, int]]:
    """First and stop of each stretch's queries, and of its keys."""
    assert query_bounds.dtype == key_bounds.dtype == torch.int32
    query_edges, key_edges = query_bounds.tolist(), key_bounds.tolist()
    assert (query_edges[0], query_edges[-1]) == (0, len(query))
    assert (key_edges[0], key_edges[-1]) == (0, len(key))
    pairs = zip(itertools.pairwise(query_edges), itertools.pairwise(key_edges), strict=True)
    for (first, stop), (first_key, stop_key) in pairs:
        assert 0 <= stop - first <= longest_queries
        assert 0 <= stop_key - first_key <= longest_keys
        yield first, stop, first_key, stop_key


def _heads_first(
    query: Tensor, key: Tensor, value: Tensor, first: int, stop: int, first_key: int, stop_key: int
) -> tuple[Tensor, Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    keys, values = (part[first_key:stop_key].repeat_interleave(group, dim=1).transpose(0, 1) for part in (key, value))
    return query[first:stop].transpose(0, 1), keys, values


def _probs(rows: Tensor, keys: Tensor, kind: AttentionKind, window: int | None) -> Tensor:
    scores = rows @ keys.transpose(1, 2) / rows.shape[2] ** 0.5
    if kind is AttentionKind.CAUSAL:
        assert scores.shape[1] == scores.shape[2]
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
    if window is not None:
        assert scores.shape[1] == scores.shape[2]
        everything = torch.ones(scores.shape[1:])
        is_far = (everything.triu(window + 1) + everything.tril(-window - 1)).bool()
        scores = scores.masked_fill(is_far, float("-inf"))
    return torch.softmax(scores, dim=-1)


def dense_attention(
    query_TNE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    segments_BS: Tensor,
    window: int | None = None,
) -> Tensor:
    """Attention by the mask of all pairs of positions; 0 where nothing is seen."""
    visible_BSS = dense_visibility(segments_BS, kind, window)
    visible_TT = torch.block_diag(*visible_BSS).bool()  # type: ignore[no-untyped-call]
    group = query_TNE.shape[1] // key_TKE.shape[1]
    key, value = (part.repeat_interleave(group, dim=1) for part in (key_TKE, value_TKE))
    scores = torch.einsum("tne,sne->nts", query_TNE, key) / query_TNE.shape[2] ** 0.5
    probs = torch.where(visible_TT, scores.masked_fill(~visible_TT, float("-inf")).softmax(-1), 0)
    return torch.einsum("nts,sne->tne", probs, value)


def traced_flash(
    query_NHE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    query_bounds_M: Tensor,
    key_bounds_M: Tensor,
    longest_queries: int,
    longest_keys: int,
    kind: AttentionKind,
    window: int | None = None,
) -> Tensor:
    """`plain_flash` as an operator that the compiler takes into its graph without looking inside."""
    output_NHE: Tensor = _forward(
        query_NHE, key_TKE, value_TKE, query_bounds_M, key_bounds_M, longest_queries, longest_keys,
        kind is AttentionKind.CAUSAL, window,
    )  # fmt: skip
    return output_NHE


def _kind(is_causal: bool) -> AttentionKind:
    return AttentionKind.CAUSAL if is_causal else AttentionKind.BIDIRECTIONAL


@torch.library.custom_op("toolkit_tests::flash", mutates_args=())
def _forward(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor, longest_queries: int,
    longest_keys: int, is_causal: bool, window: int | None,
) -> Tensor:  # fmt: skip
    bounds = (query_bounds, key_bounds, longest_queries, longest_keys)
    return plain_flash(query, key, value, *bounds, _kind(is_causal), window)


@_forward.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(query)


@torch.library.custom_op("toolkit_tests::flash_backward", mutates_args=())
def _backward(
    d_output: Tensor, query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor,
    longest_queries: int, longest_keys: int, is_causal: bool, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    bounds = (query_bounds, key_bounds, longest_queries, longest_keys)
    group, kind = query.shape[1] // key.shape[1], _kind(is_causal)
    d_query, d_key, d_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for first, stop, first_key, stop_key in _stretches(query, key, *bounds):
        rows, keys, values = _heads_first(query, key, value, first, stop, first_key, stop_key)
        probs = _probs(rows, keys, kind, window)
        d_rows = d_output[first:stop].transpose(0, 1)
        d_probs = d_rows @ values.transpose(1, 2)
        d_scores = probs * (d_probs - (d_probs * probs).sum(-1, keepdim=True)) / query.shape[2] ** 0.5
        d_query[first:stop] = (d_scores @ keys).transpose(0, 1)
        for target, part in ((d_key, d_scores.transpose(1, 2) @ rows), (d_value, probs.transpose(1, 2) @ d_rows)):
            target[first_key:stop_key] = part.unflatten(0, (-1, group)).sum(1).transpose(0, 1)
    return d_query, d_key, d_value


@_backward.register_fake
def _(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.rest = inputs[5:]


def _gradients(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
    return (*_backward(d_output, *ctx.saved_tensors, *ctx.rest), None, None, None, None, None, None)


_forward.register_autograd(_gradients, setup_context=_keep)
