"""Speed of a run: tokens and model FLOPs per second, and the share of the peak FLOPs of its devices (MFU)."""

import torch

from toolkit.engine.gpus import peak_flops
from toolkit.engine.ranks import Ranks
from toolkit.model.config import ModelSettings
from toolkit.model.flops import training_flops
from toolkit.run.metrics import Rates
from toolkit.run.settings import CompleteSettings
from toolkit.training.run_state import StepMetrics


def known_peak_flops(device: torch.device, *, precision: str) -> float | None:
    """Peak FLOPs per second of a device by its name; None off CUDA, in fp32, or if it is not in the table."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return peak_flops(torch.cuda.get_device_name(device))


def peak_flops_of(settings: CompleteSettings, ranks: Ranks) -> float | None:
    """Peak FLOPs per second of all devices of a run; None if unknown."""
    given = settings.log.peak_tflops
    each = given * 1e12 if given else known_peak_flops(ranks.device, precision=settings.precision)
    return each * ranks.world_size if each else None


class Speed:
    """Accumulates steps and returns their rates; evaluation and saving are not counted.

    `peak_flops` is per second, for all devices of the run together; None if unknown.
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
        """Rates over the steps since the last call, as fields of a logged line; `mfu` only if the peak is known."""
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
