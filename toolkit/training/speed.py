"""How fast a run is: tokens, useful arithmetic, and the share of what the devices could do at most (MFU)."""

from typing import Any

import torch

from toolkit.model.config import ModelSettings
from toolkit.model.flops import training_flops
from toolkit.training.state import StepRecord

__all__ = ["Speed", "known_peak_flops"]

# TFLOP/s of one device in bf16 without sparsity, from its maker's data sheet. The first part of a name that fits.
_BF16_TFLOPS = (
    ("A100", 312.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H200 NVL", 835.0),
    ("H200", 989.0),
)


def known_peak_flops(device: torch.device, *, precision: str) -> float | None:
    """Operations per second that a device can do at most, by its name; None for one that is not in the table."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return _named_peak_flops(torch.cuda.get_device_name(device))


def _named_peak_flops(name: str) -> float | None:
    return next((tflops * 1e12 for part, tflops in _BF16_TFLOPS if part in name), None)


class Speed:
    """Adds up steps and gives their rates; evaluation and saving lie between steps and are not in them.

    Args:
        settings: shape of the model, with its vocabulary size.
        peak_flops: of all devices of the run together, or None where it is not known.
    """

    def __init__(self, settings: ModelSettings, *, peak_flops: float | None) -> None:
        self._settings, self._peak_flops = settings, peak_flops
        self._tokens, self._flops, self._seconds = 0, 0.0, 0.0

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        self._tokens += record.step_tokens
        self._flops += training_flops(
            self._settings, tokens=record.step_tokens, targets=record.targets, pairs=record.step_pairs
        )
        self._seconds += record.seconds

    def take(self) -> dict[str, Any]:
        """Rates over the steps since the last call, as fields of a logged line; `mfu` only where the peak is known."""
        seconds = self._seconds or float("inf")
        rate = self._flops / seconds
        fields = {
            "tokens_per_second": round(self._tokens / seconds, 1),
            "model_flops_per_second": float(f"{rate:.6g}"),
        }
        if self._peak_flops is not None:
            fields["mfu"] = float(f"{rate / self._peak_flops:.4g}")
        self._tokens, self._flops, self._seconds = 0, 0.0, 0.0
        return fields
