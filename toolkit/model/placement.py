"""Arrays from the host onto a device, without waiting for what the device is doing."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def placed(array: npt.NDArray[np.generic], device: torch.device | str) -> Tensor:
    """The array as a tensor on the device; on a CPU it shares the array's memory."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        # A copy from ordinary memory would first wait for the device's queue.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
