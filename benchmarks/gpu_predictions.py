"""What `benchmarks/gpu.py` should find on an H200 if the model of a step holds. Derived by arithmetic, not measured.

The model: matrix products at the rate of a large one, by shape; pointwise kernels at the rate of a copy; attention at
the published rates of its kernel. A prediction that a measurement does not meet is wrong, and says where to look.
"""

GROUPS_210M_MS = {
    "q, k, v, o products": 7.0,
    "feed-forward products": 20.0,
    "head products": 8.7,
    "head pointwise": 13.4,
    "attention": 18.2,
    "norms and residuals": 3.2,
    "rotation": 1.0,
    "SwiGLU": 3.6,
    "embedding": 0.3,
    "accumulation": 2.2,
    "idle": 1.3,
}
"""Milliseconds of one micro-batch of the 210m, 12 rows of 2,048 by random-cut, MLM 40 %, before anything was joined or
fused: the head in chunks of 1,024 rows in eager mode, FlashAttention 2, several graphs a block."""

UPDATE_210M_MS = 6.6
"""Once a step, on one GPU."""

TOKENS_PER_SECOND: dict[str, dict[str, tuple[int, int]]] = {
    "210m": {"12 rows": (376_000, 415_000), "planned": (401_000, 450_000)},
    "610m": {"12 rows": (122_000, 135_000), "planned": (127_000, 142_000)},
    "1b": {"12 rows": (68_300, 74_800), "planned": (71_000, 78_000)},
}
"""Thousands a second with MLM and random-cut: with FlashAttention 2, and with a kernel made for Hopper."""

ROOFS = {"copy": 4.3, "product": 790.0}
"""TB/s of a large copy and TFLOP/s of a large product that the model reckons with."""

PRODUCTS_210M_MS = {"q,k,v apart": 5.3, "o": 1.7, "gate,up apart": 13.3, "down": 6.7, "head": 8.7}
"""Of all layers, forward and backward, at 24,576 positions."""
