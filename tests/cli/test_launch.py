"""How `toolkit train` asks the deepspeed launcher for ranks."""

import signal

import pytest

from toolkit.core.errors import SettingsError
from toolkit.workflows.launch import device_options, stop_signals_kept


@pytest.mark.parametrize(
    ("num_procs", "visible", "options"),
    [
        (2, None, ["--num_gpus", "2"]),
        (2, "", ["--num_gpus", "2"]),
        (2, "4,5,6", ["--include", "localhost:4,5"]),
        (3, "4,5,6", ["--include", "localhost:4,5,6"]),
    ],
)
def test_visible_devices_are_respected(num_procs, visible, options):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert device_options(num_procs, environment) == options


@pytest.mark.parametrize(("num_procs", "visible"), [(4, "4,5,6"), (1, "GPU-ab12"), (1, "-1")])
def test_what_the_launcher_cannot_take_is_refused(num_procs, visible):
    with pytest.raises(SettingsError, match="CUDA_VISIBLE_DEVICES"):
        device_options(num_procs, {"CUDA_VISIBLE_DEVICES": visible})


def test_a_run_on_the_cpu_does_not_ask_for_gpus():
    environment = {"CUDA_VISIBLE_DEVICES": "0", "DS_ACCELERATOR": "cpu"}
    assert device_options(4, environment) == ["--num_gpus", "4"]


def test_stop_signals_go_back_to_whom_they_belonged():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
