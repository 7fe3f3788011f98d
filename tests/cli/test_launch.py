"""How `toolkit train` asks the deepspeed launcher for ranks."""

import pytest

from toolkit.workflows.launch import device_options


@pytest.mark.parametrize(
    ("num_procs", "visible", "options"),
    [
        (2, None, ["--num_gpus", "2"]),
        (2, "", ["--num_gpus", "2"]),
        (2, "4,5,6", ["--include", "localhost:4,5"]),
        (3, "4,5,6", ["--include", "localhost:4,5,6"]),
        (4, "4,5,6", ["--num_gpus", "4"]),
    ],
)
def test_visible_devices_are_respected(num_procs, visible, options):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert device_options(num_procs, environment) == options
