"""The embedding's gradient: a sum over all positions that hold the same token, whatever the dtype of the weights."""

import numpy as np
import pytest
import torch
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, model_settings
from toolkit.model.initialization import initialize_
from toolkit.testing.models import tiny_encoder
from toolkit.testing.tolerances import gradient_tolerance

_VOCABULARY, _MASK_ID, _ROW = 8192, 3, 256


def _masked_rows(num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Input ids (B, S), target positions (N,) and labels (N,): ids as frequent as words are, 40 % of them masked."""
    generator = np.random.default_rng(num_rows)
    ids = torch.from_numpy(generator.zipf(1.2, (num_rows, _ROW)) % (_VOCABULARY - 4) + 4)
    is_masked = torch.from_numpy(generator.random((num_rows, _ROW)) < 0.4)
    positions_N = is_masked.flatten().nonzero().squeeze(1)
    return ids.masked_fill(is_masked, _MASK_ID), positions_N, ids.flatten()[positions_N]


@pytest.mark.parametrize(
    ("preset", "num_rows"),
    [("test", 2), ("test", 8), ("test", 32), pytest.param("nano", 32, marks=pytest.mark.slow)],
)
def test_every_bf16_gradient_is_the_fp32_one(preset: str, num_rows: int) -> None:
    """The same rounded weights on both sides, at micro-batches small and large.

    `nano` on few rows is left out: the gradients of its queries and keys are small differences there, and rounding the
    output of one module alone, in a model that is fp32 otherwise, moves them by 0.4 %, all together by 1.0 to 1.5 %.
    """
    narrow = Encoder(model_settings(preset, vocab_size=_VOCABULARY))
    initialize_(narrow, seed=5)
    narrow.to(torch.bfloat16)
    wide = Encoder(narrow.settings)
    wide.load_state_dict(narrow.state_dict())
    input_ids_BS, positions_N, labels_N = _masked_rows(num_rows)
    for encoder in (narrow, wide):
        encoder(
            input_ids_BS,
            torch.ones_like(input_ids_BS),
            AttentionKind.BIDIRECTIONAL,
            positions_N=positions_N,
            labels_N=labels_N,
            scale=1 / len(labels_N),
        ).backward()
    differences = {}
    for (name, ours), theirs in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        differences[name] = float((ours.grad.float() - theirs.grad).norm() / theirs.grad.norm())
    ours, theirs = (encoder.model.embed_tokens.weight.grad[_MASK_ID].float() for encoder in (narrow, wide))
    differences["the mask token's row"] = float((ours - theirs).norm() / theirs.norm())
    assert {name: found for name, found in differences.items() if found > gradient_tolerance(torch.bfloat16)} == {}


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_token_that_fills_the_batch_has_the_sum_of_its_gradients(is_tied: bool) -> None:
    """Terms with a common part: summed one by one in bf16, they would stop counting after some hundreds."""
    encoder = tiny_encoder(seed=1, dtype=torch.bfloat16, tie_word_embeddings=is_tied)
    ids_T = torch.full((9800,), 2)
    ids_T[::100] = 5
    gradient_TD = (torch.randn(9800, encoder.settings.hidden_size) + 0.3).bfloat16()
    hidden_TD = encoder.model.embed_tokens(ids_T)
    assert torch.equal(hidden_TD, encoder.model.embed_tokens.weight[ids_T])
    hidden_TD.backward(gradient_TD)
    found_VD = encoder.model.embed_tokens.weight.grad
    assert found_VD.dtype == torch.bfloat16
    for token in (2, 5):
        exact_D = gradient_TD[ids_T == token].double().sum(0)
        assert (found_VD[token].double() - exact_D).norm() < 3e-3 * exact_D.norm()
    assert not found_VD[[0, 1, 3, 4, *range(6, 97)]].any()


def test_an_empty_batch_has_a_gradient_of_zeros() -> None:
    encoder = tiny_encoder(seed=1, dtype=torch.bfloat16)
    encoder.model.embed_tokens(torch.empty(0, dtype=torch.int64)).sum().backward()
    assert not encoder.model.embed_tokens.weight.grad.any()
