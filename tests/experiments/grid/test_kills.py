"""A grid of 96 cells over all four families, killed four times and finished: the bytes of an undisturbed one."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.grids import write_grid

COMMAND = ["-m", "toolkit.cli", "grid"]
GRID = {"models": ("eurobert", "bert"), "rates": (1e-3, 3e-3, 1e-2), "seeds": (0, 1, 2, 3), "steps": 1}


def outputs(folder):
    """Content by name of cells and results; a kill right after a result leaves a folder of what was not whole."""
    files = [
        path for path in sorted((folder / "cells").rglob("*")) if path.is_file() and ".unfinished" not in path.parts
    ]
    files += [folder / "results.jsonl", folder / "selected.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def start(*words):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def num_done(folder):
    return len(list(folder.glob("cells/*/*/*/*/result.json")))


def wait_for(condition, *, process):
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def workers_of(process):
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def finish(process):
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    return said


@pytest.mark.slow
def test_a_grid_that_is_killed_and_shared_gives_the_same_bytes(tmp_path):
    path, folder = write_grid(tmp_path, **GRID), tmp_path / "out"
    process = start(*COMMAND, path, "--workers", 2)
    wait_for(lambda: num_done(folder) >= 8, process=process)
    first = workers_of(process)[0]
    first.kill()
    wait_for(lambda: num_done(folder) >= 24, process=process)
    replaced = workers_of(process)
    assert first not in replaced
    process.kill()
    said, _ = process.communicate()
    assert "its worker ended by signal 9" in said
    psutil.wait_procs(replaced, timeout=10)
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in replaced)
    assert 24 <= num_done(folder) < 96

    killer = start("-m", "tests.support.grid_killer", path)
    killer.communicate(timeout=1200)
    assert killer.returncode == -signal.SIGKILL
    # Both workers may have been at their fifth result.
    assert len(list(folder.glob("cells/*/*/*/*/.result.json.*.partial"))) in (1, 2)
    assert 24 < num_done(folder) < 96

    # Three commands share what is left; one of them is killed too.
    shares = [start(*COMMAND, path, "--workers", 1) for _ in range(3)]
    begun = num_done(folder)
    wait_for(lambda: num_done(folder) >= begun + 6, process=shares[2])
    shares[0].kill()
    shares[0].communicate()
    for process in shares[1:]:
        assert "96 cells" in finish(process)
    assert not (folder / ".locks").exists()
    undisturbed = write_grid(tmp_path, output="undisturbed", **GRID)
    finish(start(*COMMAND, undisturbed, "--workers", 1))
    assert outputs(folder) == outputs(tmp_path / "undisturbed")
    assert outputs(folder)["results.jsonl"].count(b"\n") == 96
