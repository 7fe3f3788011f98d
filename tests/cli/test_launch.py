"""How `toolkit train` asks the deepspeed launcher for ranks."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.core.files import shipped_folder
from toolkit.workflows.launch import as_shells_say, device_options, launcher_command, stop_signals_kept


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


@pytest.mark.parametrize(
    ("code", "shown"), [(0, 0), (1, 1), (2, 2), (3, 3), (130, 130), (-9, 137), (256 - 9, 137), (256 - 6, 134)]
)
def test_signals_are_exit_codes_as_shells_say_them(code, shown):
    assert as_shells_say(code) == shown


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}])
def test_the_launch_stays_on_this_machine(tmp_path, monkeypatch, environment):
    """Clusters lay /job/hostfile, which the launcher reads by default."""
    from deepspeed.launcher import runner

    hosts = tmp_path / "hostfile"
    hosts.write_text("worker-0 slots=2\nworker-1 slots=2\n")
    monkeypatch.setattr(runner, "DLTS_HOSTFILE", str(hosts))
    command = launcher_command(2, environment)
    arguments = runner.parse_args([*command[command.index("deepspeed.launcher.runner") + 1 :], "program.py"])
    assert not runner.fetch_hostfile(arguments.hostfile)


def test_a_rank_that_fails_alone_says_why(tmp_path):
    command = [sys.executable, str(shipped_folder("launchers") / "pretrain.py"), "--ds_config", "zero2"]
    command += ["--config", str(write_run(tmp_path)), "--set", f"data.train={tmp_path / 'nowhere'}"]
    environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: rank 1: ")
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
