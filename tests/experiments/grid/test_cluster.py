"""A grid on two nodes of Ray that loses a worker, its command and a whole node: the bytes of local workers."""

import importlib.util
import os
from contextlib import suppress

import pytest

from tests.support.grids import write_grid
from tests.support.ray_nodes import kill_at_work, two_nodes, workers_of
from tests.work.test_kills import Grid, finish, start, wait_for

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `cluster`")

NUM_CELLS = 40


class SmallGrid(Grid):
    """Cells over all four families."""

    num_items = NUM_CELLS

    def _declared(self, folder):
        return write_grid(folder.parent, output=folder.name, rates=(1e-3, 1e-2), seeds=(0, 1, 2, 3, 4), steps=1)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with two_nodes(tmp_path, monkeypatch) as nodes:
        yield nodes


def busy_logs(folder):
    """Logs of workers that have begun a cell; each command has a folder of its own for them."""
    return {log for log in folder.glob("workers/*/worker-*.log") if "--- " in log.read_text()}


def said_by(command, words):
    """A condition: the running command has printed these words."""
    said, output = bytearray(), command.stdout.fileno()
    os.set_blocking(output, False)

    def has_said():
        with suppress(BlockingIOError):
            said.extend(os.read(output, 2**20))
        return words.encode() in said

    return has_said


def raylet_of(node):
    (raylet,) = (process for process in node.children() if process.name() == "raylet")
    return raylet


@pytest.mark.slow
def test_a_grid_that_loses_worker_command_and_node_gives_the_bytes_of_local_workers(tmp_path, cluster):
    head, other = cluster
    program, folder = SmallGrid(), tmp_path / "killed"
    on_ray = (*program.command(folder, NUM_CELLS), "--executor", "ray")
    command = start(*on_ray)
    wait_for(lambda: workers_of(head) and workers_of(other) and program.num_done(folder) >= 4, command)
    (actor,) = workers_of(head)
    worker = kill_at_work(actor, folder)
    # Another one is started once the loss is told; Ray, and a command on a busy machine, take their time to notice.
    wait_for(lambda: {process.pid for process in workers_of(head)} - {actor.pid}, command)
    wait_for(said_by(command, f"ended by a crash or kill of process {worker.pid} on"), command)
    wait_for(lambda: program.num_done(folder) >= 8, command)
    command.kill()
    command.wait()
    assert 8 <= program.num_done(folder) < NUM_CELLS

    # At once: workers of the killed command may live.
    command = start(*on_ray)
    before = busy_logs(folder)
    # Each node has one of the new command's workers.
    wait_for(lambda: len(busy_logs(folder) - before) == 2, command)
    raylet_of(other).kill()
    # It is told where the worker was at a cell, and not between two.
    said = finish(command)
    assert f"{NUM_CELLS} of {NUM_CELLS} cells done" in said
    finish(start(*program.command(tmp_path / "undisturbed", 2)))
    assert program.outputs(folder) == program.outputs(tmp_path / "undisturbed")
    assert program.outputs(folder)["results.jsonl"].count(b"\n") == NUM_CELLS
