"""Ranks and launchers as processes of a test, several "hosts" being addresses of this machine."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.runs import read_metrics
from toolkit.core.files import shipped_folder
from toolkit.parallel.launcher import alone, reserved_port

_PORTS = contextlib.ExitStack()
PRETRAIN = shipped_folder("launchers") / "pretrain.py"

_OBJECTIVE = '''
import os, signal, time

import numpy as np

from toolkit.objectives import AttentionKind, Settings, Targets

batches = 0


class Failing:
    """Causal targets, in as many seconds as the environment says; at its 20th batch rank 1 fails as it says."""

    name = "failing"
    attention = AttentionKind.CAUSAL
    Settings = Settings

    def __init__(self, settings, vocabulary):
        pass

    def build(self, tokens_BS, segments_BS, draws):
        global batches
        batches += 1
        time.sleep(float(os.environ.get("SECONDS_PER_BATCH", 0)))
        rank, how = os.environ.get("RANK"), os.environ["HOW_RANK_1_FAILS"]
        if batches == 20 and rank == "1" and how == "raises":
            raise TypeError("a bug in the objective")
        if batches == 20 and rank == "1" and "killed" in how:
            os.kill(os.getpid(), signal.SIGKILL)
        if batches == 20 and (how == "is killed while rank 0 hangs" or (rank == "1" and how == "hangs")):
            time.sleep(600)
        if batches == 20 and rank == "1" and how == "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        positions_N = np.flatnonzero(segments_BS != 0)
        labels_N = tokens_BS.reshape(-1)[positions_N]
        return Targets(input_ids_BS=tokens_BS, positions_N=positions_N, labels_N=labels_N)
'''


def install_failing_objective(folder: Path) -> dict[str, str]:
    """Lay down a plugin with the objective `failing`; returns the environment in which it is found."""
    (folder / "failing.py").write_text(_OBJECTIVE)
    metadata = folder / "failing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[toolkit.objectives]\nfailing = failing:Failing\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def start(
    command: Sequence[str], environment: Mapping[str, str], *, folder: Path | None = None
) -> "subprocess.Popen[str]":
    """Python in a process group of its own, CPU only; standard error goes with standard output."""
    return start_program([sys.executable, *command], environment, folder=folder)


def start_program(
    command: Sequence[str], environment: Mapping[str, str], *, folder: Path | None = None
) -> "subprocess.Popen[str]":
    """Like `start`, for any program; this test process may have been a run's only rank before."""
    inherited = {name: value for name, value in os.environ.items() if name not in alone(0)}
    return subprocess.Popen(
        command,
        env={**inherited, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=folder,
    )


def start_ranks(
    num_ranks: int, arguments: Sequence[str], environment: Mapping[str, str]
) -> list["subprocess.Popen[str]"]:
    """`launchers/pretrain.py` on each rank, without a launcher that could end the others."""
    together = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    return [start([str(PRETRAIN), *arguments], {**environment, **together, **place}) for place in places]


def start_hosts(
    kind: str,
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    working_folders: tuple[Path | None, Path | None] = (None, None),
) -> list["subprocess.Popen[str]"]:
    """A launcher with one rank for each of two hosts, 127.0.0.1 and 127.0.0.2; `kind`: "deepspeed" or "torchrun"."""
    port, hosts = str(free_port()), folder / "hostfile"
    hosts.write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    meeting = ["--master_addr", "127.0.0.1", "--master_port", port]
    programs = {
        "deepspeed": ["deepspeed.launcher.runner", "--hostfile", str(hosts), "--no_ssh"],
        "torchrun": ["torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"],
    }
    command = ["-m", *programs[kind], *meeting]
    return [
        start([*command, "--node_rank", str(node), str(PRETRAIN), *arguments], environment or {}, folder=working_folder)
        for node, working_folder in enumerate(working_folders)
    ]


def kill_host(launcher: "subprocess.Popen[str]") -> None:
    """End a launcher and its ranks at once, as a host that goes down does."""
    # torchrun's ranks have process groups of their own.
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    launcher.communicate()


def ending(output: str) -> str:
    """How a run ended, of its output: 'finished at step 6'."""
    found: list[str] = re.findall(r"^(?:already |finished |stopped )+at step \d+", output, re.MULTILINE)
    return found[-1]


def outputs(processes: Sequence["subprocess.Popen[str]"], *, seconds: float) -> list[str]:
    """What each process printed; all have to end within `seconds`, and are killed otherwise."""
    deadline = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                kill_host(process)


def wait_for_step(run_folder: Path, step: int, processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Wait until a step is logged."""
    deadline = time.monotonic() + 180
    while not any(line["step"] >= step for line in read_metrics(run_folder)):
        ended = [process.communicate()[0] for process in processes if process.poll() is not None]
        assert not ended, ended
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


def free_port() -> int:
    """A port that nobody else is given as long as these tests run."""
    return _PORTS.enter_context(reserved_port())
