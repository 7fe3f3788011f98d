"""Equal commands with workers that are killed, each at several moments: the bytes of one that nothing disturbs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.grids import write_grid
from tests.support.runs import write_run
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.checkpoint.read import open_checkpoint
from toolkit.preprocess.writer.groups import is_unfinished, written_groups

GRID = {"models": ("eurobert", "bert"), "rates": (1e-3, 3e-3, 1e-2), "seeds": (0, 1, 2, 3), "steps": 1}


class Program:
    """A program that shares work: its command in a folder, and what it leaves there."""

    num_items: int
    num_commands = 3
    """So many share what is left in the end."""

    def command(self, folder: Path, num_workers: int) -> list[str]:
        """Words behind `python -m`."""
        raise NotImplementedError

    def num_done(self, folder: Path) -> int:
        """Items that have their results."""
        raise NotImplementedError

    def outputs(self, folder: Path) -> Mapping[str, bytes]:
        """Content by name of all that is to be the same."""
        raise NotImplementedError

    def half_written(self, folder: Path) -> list[str] | None:
        """The same of a command whose workers die with it in the middle of a result; None where there is no such."""
        return None


class Toy(Program):
    """Items that write a file each; one that is done twice has failed."""

    num_items = 120

    def command(self, folder: Path, num_workers: int) -> list[str]:
        return ["tests.support.toy_job", str(folder), str(num_workers), str(self.num_items)]

    def num_done(self, folder: Path) -> int:
        return len(list(folder.glob("done/*")))

    def outputs(self, folder: Path) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.glob("done/*"))}


class Grid(Program):
    """Cells over all four families."""

    num_items = 96

    def command(self, folder: Path, num_workers: int) -> list[str]:
        return ["toolkit.cli", "grid", str(self._declared(folder)), "--workers", str(num_workers)]

    def half_written(self, folder: Path) -> list[str] | None:
        return ["tests.support.grid_killer", str(self._declared(folder))]

    def num_done(self, folder: Path) -> int:
        return len(list(folder.glob("cells/*/*/*/*/result.json")))

    def outputs(self, folder: Path) -> Mapping[str, bytes]:
        """Cells and results; a kill right after a result leaves a folder of what was not whole."""
        assert not (folder / ".work").exists()
        files = [path for path in sorted((folder / "cells").rglob("*")) if path.is_file()]
        files = [path for path in files if ".unfinished" not in path.parts]
        files += [folder / "results.jsonl", folder / "selected.json"]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def _declared(self, folder: Path) -> Path:
        return write_grid(folder.parent, output=folder.name, **GRID)


class Study(Program):
    """Runs of three seeds, each of which two models share the first steps of; one command trains them at a time."""

    num_items, num_commands = 6, 1

    def command(self, folder: Path, num_workers: int) -> list[str]:
        home = folder.parent / f"{folder.name}-inputs"
        home.mkdir(exist_ok=True)
        write_run(home, phase_steps=4)
        (home / "study.toml").write_text(
            f"""
            [study]
            base = "{home}/run.toml"
            dir = "{folder}"
            names = "{{objective}}-{{seed}}"
            [set.lr]
            warmup_steps = 1
            decay_steps = 1
            [[models]]
            axes.schedule = ["clm 6", "clm 3 + mlm 3"]
            axes.run.seed = [0, 1, 2]
            [machine]
            threads = 1
            """
        )
        return ["toolkit.cli", "study", str(home / "study.toml")]

    def num_done(self, folder: Path) -> int:
        return len(list(folder.glob("runs/*/checkpoints/step-00000006")))

    def outputs(self, folder: Path) -> Mapping[str, bytes]:
        """Weights and moments, by their hashes."""
        found = {path.name: open_checkpoint(path).manifest.files for path in sorted((folder / "runs").iterdir())}
        return {f"{run}/{name}": entry.sha256.encode() for run, files in found.items() for name, entry in files.items()}


class Corpus(Program):
    """Groups of one source each."""

    num_items = 20

    def command(self, folder: Path, num_workers: int) -> list[str]:
        text, tokenizer = folder.parent / "text", folder.parent / "tokenizer"
        if not text.exists():
            text.mkdir()
            tiny_tokenizer(tokenizer)
            for number in range(self.num_items):
                lines = [f"{document}\n".replace("\n", " ") + "\n" for document in sample_documents(200, seed=number)]
                (text / f"{number:02}.txt").write_text("".join(lines * 20))
        given = ("--txt-documents=line", "--holdout=0.1", "--shard-tokens=50000", "--engine=reference", "--workers=1")
        words = ["preprocess", str(text), f"--tokenizer={tokenizer}", f"--output={folder}", f"--tasks={num_workers}"]
        return ["tests.support.small_groups", *words, *given]

    def num_done(self, folder: Path) -> int:
        is_finished = (folder / "corpus.json").exists() and not is_unfinished(folder)
        return self.num_items if is_finished else len(written_groups(folder))

    def outputs(self, folder: Path) -> Mapping[str, bytes]:
        """All files, hidden ones too."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def start(*words: str) -> subprocess.Popen[str]:
    """A program of Python's."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait as long as a process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def workers_of(command: subprocess.Popen[str]) -> list[psutil.Process]:
    """Processes that do a command's items."""
    found = []
    for child in psutil.Process(command.pid).children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if "toolkit.work.worker" in child.cmdline() else []
    return found


def finish(command: subprocess.Popen[str]) -> str:
    """What a command says that ends well."""
    said, _ = command.communicate(timeout=1200)
    assert command.returncode == 0, said
    return said


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(Toy(), id="toy"),
        pytest.param(Grid(), id="grid", marks=pytest.mark.slow),
        pytest.param(Study(), id="study", marks=pytest.mark.slow),
        pytest.param(Corpus(), id="corpus", marks=pytest.mark.slow),
    ],
)
def test_work_that_is_killed_and_shared_gives_the_same_bytes(tmp_path: Path, program: Program) -> None:
    folder, total = tmp_path / "killed", program.num_items

    def has(share: float) -> Callable[[], bool]:
        return lambda: program.num_done(folder) >= share * total

    # A worker, and then its command.
    command = start(*program.command(folder, 2))
    wait_for(has(0.1), command)
    first, *others = workers_of(command)
    first.kill()
    wait_for(lambda: {*workers_of(command)} - {first, *others}, command)
    wait_for(has(0.25), command)
    replaced = workers_of(command)
    assert first not in replaced
    command.kill()
    said, _ = command.communicate()
    assert "its worker ended by signal 9" in said
    psutil.wait_procs(replaced, timeout=10)
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in replaced)
    assert 0.25 * total <= program.num_done(folder) < total

    if (words := program.half_written(folder)) is not None:
        killed = start(*words)
        killed.communicate(timeout=1200)
        assert killed.returncode == -signal.SIGKILL
        assert program.num_done(folder) < total

    # Commands share what is left; one of several is killed, too.
    shares = [start(*program.command(folder, 1)) for _ in range(program.num_commands)]
    begun = program.num_done(folder)
    wait_for(has(begun / total + 0.06), shares[-1])
    if program.num_commands > 1:
        killed = shares.pop(0)
        killed.kill()
        killed.communicate()
    for command in shares:
        finish(command)
    undisturbed = tmp_path / "undisturbed"
    finish(start(*program.command(undisturbed, 1)))
    assert program.outputs(folder) == program.outputs(undisturbed)
    assert program.num_done(folder) == total
