"""Runs under a real Slurm: `python -m tests.proofs.slurm [--write docs/clusters.md]`.

Two idle nodes are needed, which see this checkout and the folder for temporary files (TMPDIR). Ranks are CPU ranks.
Each proof submits the shipped script and a job that depends on it (afterok), which notes the newest checkpoint.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.pages import made_by, write_between
from tests.resume.test_resume import compare
from tests.support.launches import ending, install_failing_objective, outputs, start_ranks, wait_for_step
from tests.support.runs import write_run
from toolkit.core.files import shipped_folder

BEGIN, END = "<!-- slurm: made by python -m tests.proofs.slurm -->", "<!-- end of slurm -->"
_SECONDS = 1800
_TOO_LATE = "error: the time limit came before a new checkpoint, so the job is not requeued."


@dataclass(frozen=True)
class Case:
    """A run on two ranks, of steps that take a while on any machine."""

    folder: Path
    steps: int
    seconds_per_batch: float
    """Of which a rank has two in a step."""

    @property
    def environment(self) -> dict[str, str]:
        """Of all of its processes."""
        return {
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "HOW_RANK_1_FAILS": "not at all",
            "SECONDS_PER_BATCH": str(self.seconds_per_batch),
            "PYTHONPATH": os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def arguments(self, name: str) -> list[str]:
        """Of `launchers/pretrain.py`, behind the run file, for the run in the folder `name`."""
        run = (f"run.dir={self.folder / name}", f'schedule=[{{objective="failing", steps={self.steps}}}]')
        return [part for one in (*run, "log.every=5", "eval.every=100000") for part in ("--set", one)]

    def make(self) -> None:
        """The run file, and the run that nothing interrupts, in the folder `whole`."""
        write_run(self.folder)
        install_failing_objective(self.folder)
        arguments = ["--config", str(self.folder / "run.toml"), *self.arguments("whole")]
        first, _ = outputs(start_ranks(2, arguments, self.environment), seconds=_SECONDS)
        assert ending(first) == f"finished at step {self.steps}", first


@dataclass(frozen=True)
class Job:
    """The shipped script in the queue, and the job behind it."""

    case: Case
    name: str
    number: str
    behind: str

    @property
    def log(self) -> str:
        """What it has printed."""
        path = self.case.folder / f"{self.name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def released(self) -> str:
        """The newest checkpoint when the job behind it ran; empty before."""
        path = self.case.folder / f"{self.name}.released"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def wait(self) -> dict[str, str]:
        """Until it has ended and is not queued again; Slurm would leave two minutes between two starts."""
        deadline = time.monotonic() + _SECONDS
        while (found := _shown(self.number))["JobState"] not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            assert time.monotonic() < deadline, found
            assert not self.released, f"afterok before the end, at {self.released}"
            if found["JobState"] == "PENDING" and found["Reason"] == "BeginTime":
                # Within the second of the first start's end, a node takes this one for that, and does not begin it.
                time.sleep(5)
                _slurm("scontrol", "update", f"JobId={self.number}", "StartTime=now")
            time.sleep(0.5)
        return found


def is_available() -> bool:
    """Whether there is a Slurm with two idle nodes."""
    if shutil.which("sbatch") is None:
        return False
    done = subprocess.run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and len(set(done.stdout.split())) >= 2


def ask_at_step(step: int) -> Callable[[Job], None]:
    """What the limit does, at once: the signal that Slurm sends before it."""

    def ask(job: Job) -> None:
        wait_for_step(job.case.folder / job.name, step, [])
        _slurm("scancel", "--batch", "--signal=USR1", job.number)

    return ask


def stopped_and_resumed(case: Case, *options: str, nodes: int, ask: Callable[[Job], None] = lambda job: None) -> str:
    """A run that is stopped before the limit, queued again and resumed until it is finished; what happened."""
    with _submitted(case, f"nodes-{nodes}", "--nodes", str(nodes), *options, ranks_per_node=2 // nodes) as job:
        ask(job)
        found = job.wait()
        assert (found["JobState"], found["ExitCode"]) == ("COMPLETED", "0:0"), (found, job.log)
        stopped, resumed = (re.findall(rf"{what} step (\d+)", job.log) for what in ("stopped at", "resuming from"))
        assert stopped == resumed, job.log
        assert len(stopped) == int(found["Restarts"]) > 0, job.log
        assert ending(job.log) == f"finished at step {case.steps}"
        assert compare(case.folder / "whole", case.folder / job.name) == []
        _wait_for(lambda: job.released)
        assert job.released == f"step-{case.steps:08d}"
    return (
        f"requeued at step {', '.join(stopped)}, finished at step {case.steps}; losses, digests, "
        "weights and moments equal those of an uninterrupted run; the dependent job (afterok) began only then"
    )


def too_short(case: Case) -> str:
    """A limit within the ten minutes of the shipped script's signal; what happened."""
    with _submitted(case, "short", "--nodes", "1", "--time", "5", ranks_per_node=2) as job:
        found = job.wait()
        assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("FAILED", "1:0", "0"), (found, job.log)
        assert job.log.count("stopped at step 0") == job.log.count(_TOO_LATE) == 1, job.log
        assert not (case.folder / "short" / "checkpoints").exists()
        _wait_for(lambda: _shown(job.behind)["Reason"] == "DependencyNeverSatisfied")
    return "ended once, with code 1 and the message; the dependent job (afterok) never began"


def finished_in_time(case: Case) -> str:
    """A signal behind the last step, and one while a job starts whose run is finished; what happened."""
    with _submitted(case, "last", "--nodes", "1", ranks_per_node=2) as job:
        ask_at_step(case.steps)(job)
        found = job.wait()
        assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("COMPLETED", "0:0", "0"), (found, job.log)
        assert job.log.count(f"\nfinished at step {case.steps}") == 1, job.log
        _wait_for(lambda: job.released)
        (case.folder / "last.released").unlink()
    # Slurm signals at once where the limit is below the ten minutes of the shipped script's signal.
    with _submitted(case, "last", "--nodes", "1", "--time", "5", ranks_per_node=2) as job:
        found = job.wait()
        assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("COMPLETED", "0:0", "0"), (found, job.log)
        assert job.log.count(f"\nalready finished at step {case.steps}") == 1, job.log
        _wait_for(lambda: job.released)
    return "ended once, with code 0; another job of that run too, signalled as it began"


@contextmanager
def _submitted(case: Case, name: str, *options: str, ranks_per_node: int) -> Iterator[Job]:
    script = str(shipped_folder("launchers") / "slurm.sbatch")
    environment = case.environment | {"RANKS_PER_NODE": str(ranks_per_node)}
    log = ("--output", str(case.folder / f"{name}.log"))
    number = _sbatch(environment, *log, *options, script, str(case.folder / "run.toml"), *case.arguments(name))
    note = f"cat {case.folder / name}/checkpoints/latest > {case.folder / name}.released"
    quiet = ("--output", os.devnull, "--wrap", note)
    behind = _sbatch(environment, f"--dependency=afterok:{number}", "--nodes", "1", *quiet)
    try:
        yield Job(case, name, number, behind)
    finally:
        for left in (number, behind):
            with contextlib.suppress(subprocess.CalledProcessError):
                _slurm("scancel", left)


def _sbatch(environment: dict[str, str], *arguments: str) -> str:
    return _slurm("sbatch", "--parsable", *arguments, environment=environment).strip()


def _shown(number: str) -> dict[str, str]:
    words = (word.partition("=") for word in _slurm("scontrol", "show", "job", "-o", number).split())
    return {key: value for key, _, value in words}


def _slurm(*command: str, environment: dict[str, str] | None = None) -> str:
    both = {**os.environ, **(environment or {})}
    return subprocess.run(command, env=both, stdout=subprocess.PIPE, text=True, check=True).stdout


def _wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def main() -> int:
    """Prove, print, write where asked; nothing where there is no Slurm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the page's markers")
    page: Path | None = parser.parse_args().write
    if not is_available():
        print("no Slurm with two idle nodes here: nothing was tried")
        return 0
    # Slurm signals one or two minutes before the limit, and all steps take longer than the two that are left at most.
    limit = ("--time", "3", "--signal=B:USR1@60")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        case = Case(Path(folder), steps=220, seconds_per_batch=0.3)
        case.make()
        rows = {
            "one node, two ranks, a limit of 3 minutes": stopped_and_resumed(case, *limit, nodes=1),
            "two nodes, one rank each, a limit of 3 minutes": stopped_and_resumed(case, *limit, nodes=2),
            "a limit of 5 minutes, the signal 10 minutes before it": too_short(case),
            "the signal after the last step": finished_in_time(case),
        }
    version = _slurm("sbatch", "--version").split()[-1]
    text = f"{made_by('tests.proofs.slurm', packages=('deepspeed', 'torch'))}, Slurm {version}:\n\n"
    text += "| job | what happened |\n|---|---|\n" + "\n".join(f"| {job} | {found} |" for job, found in rows.items())
    print(text)
    if page is not None:
        write_between(page, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
