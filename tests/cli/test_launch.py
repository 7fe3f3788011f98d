"""How `toolkit train` asks the deepspeed launcher for ranks."""

import base64
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest
import torch

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.forked import run_python
from tests.support.launches import PRETRAIN
from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.core.files import shipped_folder
from toolkit.core.signals import stop_signals_kept
from toolkit.engine import gpus
from toolkit.launching import launch
from toolkit.launching.launch import (
    as_shells_say,
    devices_of_ranks,
    rank_command,
    what_is_left,
)
from toolkit.parallel.launcher import check_launcher, read_launcher, reserved_port
from toolkit.run import RunFolder


@pytest.fixture
def on_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("num_procs", "visible", "devices"),
    [(2, None, [0, 1]), (2, "", [0, 1]), (2, "4,5,6", [4, 5]), (3, "4,5,6", [4, 5, 6])],
)
@pytest.mark.usefixtures("on_gpus")
def test_visible_devices_are_respected(num_procs, visible, devices, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices_of_ranks(num_procs) == devices


@pytest.mark.parametrize(("num_procs", "visible"), [(4, "4,5,6"), (2, "GPU-ab12,GPU-cd34")])
@pytest.mark.usefixtures("on_gpus")
def test_what_the_launcher_cannot_take_is_refused(num_procs, visible, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(SettingsError, match=f"CUDA_VISIBLE_DEVICES={visible} (shows 3 GPUs|names GPUs by UUID)"):
        devices_of_ranks(num_procs)


@pytest.mark.usefixtures("on_gpus")
def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(SettingsError, match="asks for 4 ranks, and this machine has 3 GPUs"):
        devices_of_ranks(4)


def test_a_run_on_the_cpu_does_not_ask_for_gpus(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices_of_ranks(4) == [0, 1, 2, 3]


def test_one_rank_needs_no_launcher():
    """It would be two imports of DeepSpeed more."""
    command, place = rank_command(1, port=29500)
    assert command == [sys.executable, "-u"]
    check_launcher(place)
    assert read_launcher(place).world_size == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port that is bound cannot be listened at")
def test_a_port_is_kept_for_rank_0():
    """Until it listens, in one of torch's ways; nobody else gets it."""
    with reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        store.set("rank 0", "listens")
        client = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
        assert client.get("rank 0") == b"listens"


def test_ranks_with_nothing_to_save_end_with_the_first_signal(monkeypatch, capfd):
    ranks = [sys.executable, "-c", "import time; time.sleep(100)"]
    monkeypatch.setattr(launch, "rank_command", lambda num_procs, *, port: (ranks, {}))
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    with stop_signals_kept():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            launch.launch_ranks([], num_procs=1, last_request=0)
    assert not [child for child in psutil.Process().children() if child.cmdline() == ranks]
    assert "out of memory" not in capfd.readouterr().err
    timer.join()


def test_a_rank_that_the_system_kills_is_explained(monkeypatch, capfd):
    ranks = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(launch, "rank_command", lambda num_procs, *, port: (ranks, {}))
    assert launch.launch_ranks([], num_procs=1) == 128 + signal.SIGKILL
    assert (
        "probably because the machine ran out of memory. Set a smaller train.micro_batch_rows" in capfd.readouterr().err
    )


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


def test_an_interrupted_run_says_what_the_same_command_will_do(tmp_path):
    folder = RunFolder(tmp_path)
    again = "nothing was saved; the same command starts again"
    assert what_is_left(folder) == f"interrupted before the first step, {again}"
    folder.metrics_file.write_text('{"step": 0, "eval_loss": {}}\n')
    assert what_is_left(folder) == f"interrupted before the first step, {again}"
    folder.metrics_file.write_text('{"step": 1, "loss": 2.5}\n')
    assert what_is_left(folder) == f"interrupted before the first checkpoint, {again}"
    folder.tokenizer.mkdir()
    for step in (1_000, 2_000):
        write_checkpoint(folder.checkpoints, step, states=states_of(step), tokenizer_folder=folder.tokenizer)
    assert what_is_left(folder) == "interrupted; the same command resumes from step 2,000"
    assert what_is_left(folder, how="killed") == "killed; the same command resumes from step 2,000"


@pytest.mark.usefixtures("on_gpus")
def test_the_launcher_takes_its_command(monkeypatch):
    """Of this machine alone, whatever /job/hostfile says, which clusters lay and the command `deepspeed` reads."""
    from deepspeed.launcher.launch import parse_args

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    command, place = rank_command(2, port=29500)
    monkeypatch.setattr(sys, "argv", [*command[command.index("deepspeed.launcher.launch") :], "program.py"])
    arguments = parse_args()
    # Where this process has joined a run of one rank, it holds that run's.
    assert place == {"LOCAL_WORLD_SIZE": "2"}
    assert json.loads(base64.urlsafe_b64decode(arguments.world_info)) == {"localhost": [4, 5]}
    assert (arguments.node_rank, arguments.training_script) == (0, "program.py")


def test_a_run_is_resolved_without_torch(tmp_path):
    """Importing it is most of what a command that has nothing to do would cost."""
    script = (
        "import sys\nfrom toolkit.run.load import declare_run\nfrom toolkit.launching import train\n"
        "train.resolve_run(declare_run(sys.argv[1]), ds_config=None, num_ranks=train.num_devices()).is_past(20)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(write_run(tmp_path))]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    subprocess.run(command, env=environment, timeout=300, check=True)


def test_a_rank_that_fails_alone_says_why(tmp_path):
    launcher = shipped_folder("launchers") / "pretrain.py"
    code = (
        "import runpy\nfrom toolkit.launching import rank\nrank._SECONDS_FOR_RANK_0 = 0.1\n"
        f"runpy.run_path({str(launcher)!r}, run_name='__main__')"
    )
    words = ["-c", code, "--config", str(write_run(tmp_path)), "--set", f"data.train={tmp_path / 'nowhere'}"]
    environment = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    ended = run_python(words, folder=tmp_path, environment=environment)
    assert ended.code == 2
    assert ended.output.startswith("error: rank 1: ")
    assert "nowhere" in ended.output
    assert "Traceback" not in ended.output


def test_a_port_in_use_is_told_in_a_line(tmp_path):
    with socket.create_server(("", 0)) as taken:
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        port = {"MASTER_PORT": str(taken.getsockname()[1]), "DS_ACCELERATOR": "cpu"}
        code = f"import runpy\nrunpy.run_path({str(PRETRAIN)!r}, run_name='__main__')"
        words = ["-c", code, "--config", str(write_run(tmp_path))]
        ended = run_python(words, folder=tmp_path, environment={**place, **port})
    assert ended.code == 2
    (line,) = re.findall(r"^error: .*", ended.output, re.MULTILINE)
    assert f"rank 0 at 127.0.0.1:{port['MASTER_PORT']} (MASTER_ADDR, MASTER_PORT): " in line
    assert "Address already in use" in line
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("dash", ["-", "_"])
def test_options_of_a_rank_have_both_spellings(dash, monkeypatch, capsys, tmp_path):
    """`torch.distributed.launch` writes --local-rank, and `deepspeed` --local_rank."""
    options = ["--print_run_dir", "--ds_config=zero2", "--local_rank", "0", "--config", str(write_run(tmp_path))]
    words = [option.replace("_", dash) if option.startswith("--") else option for option in options]
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *words, "--set", "run.dir=a-b_c"])
    runpy.run_path(str(PRETRAIN))["main"]()
    assert capsys.readouterr().out == "a-b_c\n"
