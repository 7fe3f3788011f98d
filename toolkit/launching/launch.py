"""`toolkit train`: start ranks on this machine, several by the deepspeed launcher, and own the signals.

Of the launcher it is the part that runs on each machine (`deepspeed.launcher.launch`): the command `deepspeed` in front
of it looks for other machines, and takes two seconds to import. Launcher and ranks get a session of their own, so a
Ctrl-C on the terminal reaches this process alone. A stop (`stop_signals`) becomes a stop file, also one that
came before there were ranks; they look at it between steps, and it is safe while they still import. A second one, or a
Ctrl-C, ends everything at once. If this process is killed, ranks notice and end themselves.
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
    "a rank was killed by the system, probably since the machine ran out of memory. Set a smaller "
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

    Where `is_stopped` tells that a stop was asked for already, the ranks stop before a step. The first request asks
    them to save and stop, and the `last_request` ends them at once. With 0, for ranks that have nothing to save,
    the signals are left to the caller's handlers, of which a KeyboardInterrupt ends the ranks.
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
            # Ranks must not decide otherwise: on a CPU the launcher gives them GPU numbers all the same.
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
    """Message on what a run has saved that was interrupted, or killed."""
    if saved := folder.newest_step():
        return f"{how}; the same command resumes from step {saved:,}"
    has_trained = any("loss" in line for line in read_lines(folder))
    return nothing_saved("checkpoint" if has_trained else "step", how=how)


def as_shells_say(code: int) -> int:
    """Exit code of the launcher; 128 + the number of the signal that ended it, or ended a rank."""
    # It exits with the negative code of a rank, of which the system keeps eight bits: 256 - 9 for SIGKILL.
    number = -code if code < 0 else 256 - code
    return 128 + number if 0 < number <= signal.NSIG else code


def rank_command(num_procs: int, *, port: int) -> tuple[list[str], dict[str, str]]:
    """Start of `num_procs` ranks on this machine: a command up to the program that ranks run, and its variables."""
    python = [sys.executable, "-u"]
    if num_procs == 1:
        return python, alone(port)
    devices = {"localhost": devices_of_ranks(num_procs)}
    launcher = [*python, "-m", "deepspeed.launcher.launch", "--log_level", "critical"]
    world = base64.urlsafe_b64encode(json.dumps(devices).encode()).decode()
    # The launcher sets LOCAL_SIZE alone, and this process may have joined a run of one rank before.
    place = {"LOCAL_WORLD_SIZE": str(num_procs)}
    return [*launcher, "--world_info", world, "--master_port", str(port)], place


def devices_of_ranks(num_procs: int) -> list[int]:
    """The number of each rank's GPU: the first of those that are visible. On a CPU it means nothing."""
    visible, listed = gpus.visible_gpus(), os.environ.get(gpus.VISIBLE_DEVICES)
    if not visible:
        return list(range(num_procs))
    if num_procs <= len(visible) and all(name.isdecimal() for name in visible):
        return [int(name) for name in visible[:num_procs]]
    if listed:
        raise SettingsError(
            f"--num-procs asks for {counted(num_procs, 'rank')}, and {gpus.VISIBLE_DEVICES}={listed} shows "
            f"{counted(len(visible), 'device')}.\nThe deepspeed launcher takes one GPU a rank, named by number: ask "
            "for fewer ranks, show more GPUs, or set DS_ACCELERATOR=cpu."
        )
    raise SettingsError(
        f"--num-procs asks for {counted(num_procs, 'rank')}, and this machine has {counted(len(visible), 'GPU')}.\n"
        "Ask for fewer ranks, or set DS_ACCELERATOR=cpu."
    )


def _start_listening(
    stop_file: Path,
    command: list[str],
    environment: dict[str, str],
    is_stopped: Callable[[], bool],
    last_request: int,
) -> "subprocess.Popen[bytes]":
    """Start the launcher, with the stop signals turned into the stop file from before it starts."""
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
    # Only now: from here on no signal is lost between the two handlers.
    if is_stopped():
        requests.add(signal.SIGTERM)
        stop_file.touch()
    launchers.append(subprocess.Popen(command, env=environment, start_new_session=True))
    return launchers[0]


def _kill(launcher: "subprocess.Popen[bytes]") -> None:
    """End the launcher and every rank at once; without waiting, since a signal handler may interrupt a wait."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
