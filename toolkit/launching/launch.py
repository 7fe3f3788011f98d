"""`toolkit train`: start ranks on this machine, several through the deepspeed launcher, and handle signals.

Only the launcher's per-machine part (`deepspeed.launcher.launch`) is used: the `deepspeed` command looks for other
machines and takes two seconds to import. Launcher and ranks get their own session, so a Ctrl-C on the terminal reaches
this process only. A stop signal (`stop_signals`), even one from before the ranks start, becomes a stop file, which
ranks check between steps and which is safe while they import. A second one, or a Ctrl-C, kills everything at once. If
this process is killed, ranks notice and exit.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from toolkit.core.errors import SettingsError
from toolkit.core.files import shipped_folder
from toolkit.core.signals import Requests, stop_signals, stop_signals_kept
from toolkit.core.text import counted
from toolkit.engine import gpus
from toolkit.launching.stop_signals import nothing_saved
from toolkit.parallel.launcher import STARTER_VARIABLE, STOP_FILE_VARIABLE, alone, reserved_port
from toolkit.run import RunFolder
from toolkit.run.metrics import read_lines

_KILLED = (
    "a rank was killed by the system, probably because the machine ran out of memory. Set a smaller "
    "train.micro_batch_rows, train.activation_checkpointing, or fewer ranks; --dry-run says what a rank needs."
)


def launch_ranks(
    arguments: Sequence[str],
    *,
    num_procs: int,
    is_stopped: Callable[[], bool] = lambda: False,
    last_request: int = 2,
) -> int:
    """Run `launchers/pretrain.py`, several ranks of it under the deepspeed launcher, and return its exit code.

    If `is_stopped` reports an earlier stop request, the ranks stop before their first step. The first request asks them
    to save and stop; request number `last_request` kills them at once. With 0, for ranks with nothing to save, signals
    are left to the caller's handlers; a KeyboardInterrupt from one kills the ranks.
    """
    program = [str(shipped_folder("launchers") / "pretrain.py"), *arguments]
    with tempfile.TemporaryDirectory(prefix="toolkit-train-") as folder, reserved_port() as port:
        command, place = rank_command(num_procs, port=port)
        stop_file = Path(folder) / "stop"
        environment = {
            **os.environ,
            **place,
            STOP_FILE_VARIABLE: str(stop_file),
            STARTER_VARIABLE: str(os.getpid()),
            # Ranks must not decide otherwise: even on a CPU the launcher gives them GPU numbers.
            "DS_ACCELERATOR": "cuda" if gpus.has_gpu() else "cpu",
        }
        with stop_signals_kept():
            launcher = _start_listening(stop_file, [*command, *program], environment, is_stopped, last_request)
            try:
                code = launcher.wait()
            except KeyboardInterrupt:
                _kill(launcher)
                launcher.wait()
                raise
            code = as_shells_say(code)
            if code == 128 + signal.SIGKILL and not stop_file.exists():
                print(_KILLED, file=sys.stderr, flush=True)
    return code


def what_is_left(folder: RunFolder, *, how: str = "interrupted") -> str:
    """Message on what an interrupted or killed run has saved."""
    if saved := folder.newest_step():
        return f"{how}; the same command resumes from step {saved:,}"
    has_trained = any("loss" in line for line in read_lines(folder))
    return nothing_saved("checkpoint" if has_trained else "step", how=how)


def as_shells_say(code: int) -> int:
    """Exit code of the launcher, or 128 + the number of the signal that killed it or a rank."""
    # It exits with a rank's negative code, which the system truncates to eight bits: 256 - 9 for SIGKILL.
    number = -code if code < 0 else 256 - code
    return 128 + number if 0 < number <= signal.NSIG else code


def rank_command(num_procs: int, *, port: int) -> tuple[list[str], dict[str, str]]:
    """Command that starts `num_procs` ranks on this machine, up to the ranks' program, and its variables."""
    python = [sys.executable, "-u"]
    if num_procs == 1:
        return python, alone(port)
    devices = {"localhost": devices_of_ranks(num_procs)}
    launcher = [*python, "-m", "deepspeed.launcher.launch", "--log_level", "critical"]
    world = base64.urlsafe_b64encode(json.dumps(devices).encode()).decode()
    # The launcher sets only LOCAL_SIZE, and this process may have joined a run of one rank before.
    place = {"LOCAL_WORLD_SIZE": str(num_procs)}
    return [*launcher, "--world_info", world, "--master_port", str(port)], place


def devices_of_ranks(num_procs: int) -> list[int]:
    """GPU number of each rank: the first visible ones; meaningless on a CPU."""
    visible, listed = gpus.visible_gpus(), os.environ.get(gpus.VISIBLE_DEVICES)
    if not visible:
        return list(range(num_procs))
    if num_procs > len(visible):
        found = f"{gpus.VISIBLE_DEVICES}={listed} shows" if listed else "this machine has"
        raise SettingsError(
            f"--num-procs asks for {counted(num_procs, 'rank')}, and {found} {counted(len(visible), 'GPU')}.\n"
            "Ask for fewer ranks, show more GPUs, or set DS_ACCELERATOR=cpu."
        )
    if not all(name.isdecimal() for name in visible):
        raise SettingsError(
            f"{gpus.VISIBLE_DEVICES}={listed} names GPUs by UUID, and the deepspeed launcher takes their numbers.\n"
            "Set it to numbers; `nvidia-smi -L` lists both."
        )
    return [int(name) for name in visible[:num_procs]]


def _start_listening(
    stop_file: Path,
    command: list[str],
    environment: dict[str, str],
    is_stopped: Callable[[], bool],
    last_request: int,
) -> "subprocess.Popen[bytes]":
    """Start the launcher; stop signals become the stop file from before it starts."""
    launchers: list[subprocess.Popen[bytes]] = []
    requests = Requests()

    def on_stop(number: int, frame: FrameType | None) -> None:
        requests.add(number)
        if requests.number >= last_request:
            for launcher in launchers:
                _kill(launcher)
        stop_file.touch()

    for number in stop_signals() if last_request else ():
        signal.signal(number, on_stop)
    # Only now, so that no signal is lost between the two handlers.
    if is_stopped():
        requests.add(signal.SIGTERM)
        stop_file.touch()
    launchers.append(subprocess.Popen(command, env=environment, start_new_session=True))
    return launchers[0]


def _kill(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill the launcher and every rank at once; without waiting, because a signal handler may interrupt a wait."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
