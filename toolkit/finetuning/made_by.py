"""Makers of a result: versions, device and compute dtype, on which scores depend beside the declaration."""

import torch
import transformers

import toolkit
from toolkit.core.machine import processor_name
from toolkit.engine.gpus import has_gpu
from toolkit.engine.precision import Precision
from toolkit.finetuning.precision import choose_autocast


def made_by(threads: int, dtype: Precision | None = None) -> dict[str, str]:
    """Makers of this process's results; the compute dtype is the one on so many threads of a CPU, or on the GPU."""
    return {**versions_and_device(), "dtype": dtype or choose_autocast(threads)}


def versions_and_device() -> dict[str, str]:
    """The same, as far as nothing has to be measured for it."""
    return {
        "toolkit": toolkit.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if has_gpu() else processor_name(),
    }
