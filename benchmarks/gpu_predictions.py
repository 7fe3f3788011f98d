"""Figures that `benchmarks/gpu.py` should find if the model of a step holds: by arithmetic, not measured.

The model: matrix products at the rate of a large one, by shape; pointwise kernels at the rate of a copy; attention at
the published rates of its kernel. A prediction that a measurement does not meet is wrong, and says where to look.
"""

import re

_CARDS = {"H100 80GB HBM3": "H100", "H200": "H200"}
"""By the full name, since others of these names have fewer units or slower memory."""
_TOKENS_PER_SECOND = {
    ("H100", "flash2"): {"210m": 378_000, "610m": 117_000, "1b": 65_000},
    ("H100", "flash3"): {"210m": 415_000, "610m": 129_000, "1b": 71_000},
    ("H200", "flash2"): {"210m": 402_000, "610m": 126_000, "1b": 70_000},
    ("H200", "flash3"): {"210m": 450_000, "610m": 141_000, "1b": 78_000},
}
"""With MLM, random-cut and as many rows as fit, by card and attention kernel."""
_LOST_BEFORE_2_12 = {"210m": 0.016, "610m": 0.014, "1b": 0.011}
"""Share that torch 2.11 loses: its compiler has no `max_complex_pointwise_cat_inputs`."""
_ROOFS = {"H100": {"copy": 3.0, "product": 790.0}, "H200": {"copy": 4.3, "product": 790.0}}
"""TB/s of a large copy and TFLOP/s of a large product that the model reckons with."""


def tokens_per_second(device: str, torch_version: str, *, attention: str, preset: str) -> float | None:
    """Of a preset on a GPU by its name; None where the model says nothing."""
    rate = _TOKENS_PER_SECOND.get((_card(device), attention), {}).get(preset)
    is_old = re.match(r"2\.11\b", torch_version) is not None
    return None if rate is None else rate * (1 - is_old * _LOST_BEFORE_2_12[preset])


def roof(device: str, what: str) -> float | None:
    """Rate of a large "copy" or "product" on a GPU by its name."""
    return _ROOFS.get(_card(device), {}).get(what)


def _card(device: str) -> str:
    return _CARDS.get(device.removeprefix("NVIDIA "), "")
