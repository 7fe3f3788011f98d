"""Tolerances of all tests, in one table.

A value is compared with `torch.testing.assert_close(..., **tolerance(dtype))`. A test that needs a looser tolerance
says why in a sentence.
"""

import torch

HUGGING_FACE_LOGITS = 2e-5
"""Largest logit difference between one of our models and its Hugging Face twin, fp32."""

_TOLERANCES = {
    torch.float64: (1e-10, 1e-12),
    torch.float32: (2e-5, 2e-6),
    # Eight bits of mantissa, and a few successive roundings.
    torch.bfloat16: (3e-2, 3e-2),
}
_GRADIENT_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """`rtol` and `atol` for two ways of computing the same value in `dtype`."""
    relative, absolute = _TOLERANCES[dtype]
    return {"rtol": relative, "atol": absolute}


def gradient_tolerance(dtype: torch.dtype) -> float:
    """Largest |difference| / |gradient| of one parameter, between `dtype` and fp32 on the same rounded weights."""
    return _GRADIENT_TOLERANCES[dtype]
