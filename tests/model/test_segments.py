"""Arrays on their way to a device: from pinned memory to a GPU, shared with a CPU."""

import numpy as np
import pytest
import torch

from toolkit.model.segments import to_device


def test_on_a_cpu_the_memory_is_shared() -> None:
    array = np.arange(3)
    tensor = to_device(array, "cpu")
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2]


def test_to_a_gpu_it_goes_pinned_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: done.append("pinned") or tensor)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, device, *, non_blocking: done.append((device, non_blocking)) or tensor
    )
    to_device(np.arange(3), torch.device("cuda", 1))
    assert done == ["pinned", (torch.device("cuda", 1), True)]
