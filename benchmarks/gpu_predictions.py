"""Figures that `benchmarks/gpu.py` should find on an H200 if the model of a step holds: by arithmetic, not measured.

The model: matrix products at the rate of a large one, by shape; pointwise kernels at the rate of a copy; attention at
the published rates of its kernel. A prediction that a measurement does not meet is wrong, and says where to look.
"""

TOKENS_PER_SECOND: dict[tuple[str, int], tuple[int, int]] = {
    ("210m", 12): (370_000, 370_000),
    ("610m", 12): (120_000, 120_000),
    ("1b", 12): (67_000, 67_000),
    ("210m", 48): (392_000, 446_000),
    ("610m", 36): (126_000, 142_000),
    ("1b", 24): (70_500, 78_500),
}
"""With MLM and random-cut, by preset and rows of a micro-batch: with FlashAttention 2 and plain forms, and with a
kernel made for Hopper and the forms that are written for the compiler. Of 12 rows, the first alone."""

ROOFS = {"copy": 4.3, "product": 790.0}
"""TB/s of a large copy and TFLOP/s of a large product that the model reckons with."""

PRODUCTS_210M_MS = {"q,k,v apart": 5.3, "o": 1.7, "gate,up apart": 13.3, "down": 6.7, "head": 8.7}
"""Of all layers, forward and backward, at 24,576 positions."""
