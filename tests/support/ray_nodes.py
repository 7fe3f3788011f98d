"""Two nodes of a Ray cluster on this machine, which tests lose."""

import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest


@contextmanager
def _node(log: Path, *options: str) -> Iterator[psutil.Popen]:
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


@contextmanager
def two_nodes(logs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[psutil.Popen, psutil.Popen]]:
    """The head and another node, to which the commands of a test connect."""
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
        _node(logs / "head.log", *head, f"--temp-dir={folder}") as first,
        _node(logs / "other.log", *another) as second,
    ):
        yield first, second
    shutil.rmtree(folder, ignore_errors=True)


def workers_of(node: psutil.Popen) -> list[psutil.Process]:
    """Processes of a node that run work."""
    found = []
    for process in node.children(recursive=True):
        # One that has just ended has no command line.
        with suppress(psutil.NoSuchProcess):
            found += [process] if "Worker" in " ".join(process.cmdline()[:1]) else []
    return found


def kill_at_work(actor: psutil.Process, folder: Path) -> psutil.Process:
    """Kill an actor and its worker, which is returned, while that is at an item of the work in a folder: the command
    says nothing of one that is lost between two.
    """
    (worker,) = actor.children()
    deadline = time.monotonic() + 120
    worker.suspend()
    while not _is_at_work(worker, folder / ".work"):
        worker.resume()
        assert time.monotonic() < deadline, "the worker has begun nothing"
        time.sleep(0.05)
        worker.suspend()
    actor.kill()
    worker.kill()
    return worker


def _is_at_work(worker: psutil.Process, work: Path) -> bool:
    for mark in work.glob("*.begun"):
        with suppress(FileNotFoundError):
            if f"{socket.gethostname()} {worker.pid}" in mark.read_text().splitlines():
                return True
    return False
