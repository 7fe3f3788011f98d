"""A grid on two nodes of Ray that loses a worker, its command and a whole node: the bytes of local workers."""

import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.experiments.grid.test_kills import COMMAND, finish, num_done, outputs, start, wait_for
from tests.support.grids import write_grid

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `cluster`")

GRID = {"rates": (1e-3, 1e-2), "seeds": (0, 1, 2, 3, 4), "steps": 1}
NUM_CELLS = 40


@contextmanager
def node(log, *options):
    """A node with one CPU, as a machine has it; its processes end with the block."""
    # Two nodes on one machine: neither may take the ports of the other's workers.
    own = ("--num-cpus=1", "--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=100000000")
    command = [Path(sys.executable).with_name("ray"), "start", *options, *own, "--disable-usage-stats", "--block"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        process = psutil.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield process
    finally:
        left = [*process.children(recursive=True), process] if process.is_running() else []
        process.terminate()
        for alive in psutil.wait_procs(left, timeout=15)[1]:
            alive.kill()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Head and another node."""
    # Sockets below it have to have short names.
    folder = tempfile.mkdtemp(prefix="ray-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    head = ("--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false")
    another = (f"--address={address}", "--node-ip-address=127.0.0.1")
    with (
        node(tmp_path / "head.log", *head, f"--temp-dir={folder}") as first,
        node(tmp_path / "other.log", *another) as second,
    ):
        yield first, second
    shutil.rmtree(folder, ignore_errors=True)


def workers_of(node):
    found = []
    for process in node.children(recursive=True):
        # One that has just ended has no command line.
        with suppress(psutil.NoSuchProcess):
            found += [process] if "ray::ClusterWorker" in " ".join(process.cmdline()) else []
    return found


def busy_logs(folder):
    """Logs of workers that have begun a cell; each command has a folder of its own for them."""
    return {log for log in folder.glob("workers/*/worker-*.log") if "--- " in log.read_text()}


def raylet_of(node):
    (raylet,) = (process for process in node.children() if process.name() == "raylet")
    return raylet


@pytest.mark.slow
def test_a_grid_that_loses_worker_command_and_node_gives_the_bytes_of_local_workers(tmp_path, cluster):
    head, other = cluster
    path, folder = write_grid(tmp_path, **GRID), tmp_path / "out"
    on_ray = (*COMMAND, path, "--executor", "ray")
    command = start(*on_ray)
    wait_for(lambda: workers_of(head) and workers_of(other) and num_done(folder) >= 4, process=command)
    (killed,) = workers_of(head)
    killed.kill()
    wait_for(lambda: num_done(folder) >= 8, process=command)
    command.send_signal(signal.SIGKILL)
    said, _ = command.communicate()
    assert f"ended by a crash or kill of process {killed.pid} on" in said
    assert 8 <= num_done(folder) < NUM_CELLS

    # At once: workers of the killed command may live.
    command = start(*on_ray)
    before = busy_logs(folder)
    # Each node has one of the new command's workers.
    wait_for(lambda: len(busy_logs(folder) - before) == 2, process=command)
    raylet_of(other).kill()
    said = finish(command)
    assert "ended by a crash or kill of process" in said
    assert f"{NUM_CELLS} of {NUM_CELLS} cells done" in said
    undisturbed = write_grid(tmp_path, output="undisturbed", **GRID)
    finish(start(*COMMAND, undisturbed, "--workers", 2))
    assert outputs(folder) == outputs(tmp_path / "undisturbed")
    assert outputs(folder)["results.jsonl"].count(b"\n") == NUM_CELLS
