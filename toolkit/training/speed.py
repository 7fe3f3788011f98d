"""Speed of a run: tokens and model FLOPs per second, and the share of the peak FLOPs of its devices (MFU)."""

import re

import torch

from toolkit.model.config import ModelSettings
from toolkit.model.presets import training_flops
from toolkit.run.metrics import Rates
from toolkit.training.run_state import StepMetrics

# Dense bf16 TFLOP/s of one device, from its data sheet, by its full name without the vendor's.
# Full, since names contain one another: a slice of a card (MIG, a virtual GPU), a variant with fewer units
# (A100-SXM-64GB) and an RTX A1000 are no A100, and no MFU is better than a wrong one.
_BF16_TFLOPS = {
    r"A100-(SXM4?|PCIE)-(40|80)GB|A100 80GB PCIe|A100X": 312.0,
    r"A40": 149.7,
    r"L4": 121.0,
    r"L40S": 362.0,
    r"GeForce RTX 4090": 165.2,
    r"H100 80GB HBM3": 989.0,
    r"H100 PCIe": 756.0,
    r"H100 NVL": 835.0,
    r"H200": 989.0,
    r"H200 NVL": 835.0,
    r"GH200 (120GB|480GB|144G HBM3e)": 989.0,
    r"B200": 2250.0,
    # One of two dies: each is a device, and a rank.
    r"Instinct MI250X": 191.5,
    r"Instinct MI300X": 1307.0,
}


def known_peak_flops(device: torch.device, *, precision: str) -> float | None:
    """Peak FLOPs per second of a device by its name; None if it is not in the table."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return _named_peak_flops(torch.cuda.get_device_name(device))


def _named_peak_flops(name: str) -> float | None:
    model = re.sub(r"^(NVIDIA|AMD) ", "", name)
    return next((tflops * 1e12 for names, tflops in _BF16_TFLOPS.items() if re.fullmatch(names, model)), None)


class Speed:
    """Adds up steps and gives their rates; evaluation and saving are not counted.

    Args:
        settings: shape of the model, with its vocabulary size.
        peak_flops: FLOPs per second of all devices of the run together, or None if unknown.
    """

    def __init__(self, settings: ModelSettings, *, peak_flops: float | None) -> None:
        self._settings, self._peak_flops = settings, peak_flops
        self._tokens, self._flops, self._seconds = 0, 0.0, 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Count a step."""
        counts = metrics.counts
        self._tokens += counts.tokens
        self._flops += training_flops(
            self._settings, tokens=counts.tokens, targets=counts.targets, attended_pairs=counts.attended_pairs
        )
        self._seconds += metrics.seconds

    def take(self) -> Rates:
        """Rates over the steps since the last call, as fields of a logged line; `mfu` only where the peak is known."""
        seconds = self._seconds or float("inf")
        rate = self._flops / seconds
        rates: Rates = {
            "tokens_per_second": round(self._tokens / seconds, 1),
            "model_flops_per_second": float(f"{rate:.6g}"),
        }
        if self._peak_flops is not None:
            rates["mfu"] = float(f"{rate / self._peak_flops:.4g}")
        self._tokens, self._flops, self._seconds = 0, 0.0, 0.0
        return rates
