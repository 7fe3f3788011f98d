"""A stand-in for Slurm's queue: `sbatch` notes what it is given, `squeue` shows the jobs that a test has not ended."""

import os
from pathlib import Path

import pytest

_SBATCH = """#!/bin/bash
cd "$(dirname "$0")/.."
number=$(($(ls jobs | wc -l) + 1))
printf '%s\\n' "$@" > jobs/$number
while [[ $1 != --job-name ]]; do shift; done
echo "$number|PENDING|None|$2" >> queue
echo "$number;cluster"
"""
_SQUEUE = '#!/bin/bash\ncat "$(dirname "$0")/../queue"\n'
_UNKNOWN = "#!/bin/bash\nexit 1\n"
"""In place of the programs that say how a job ended, which would ask a real Slurm about a job of its own."""


class Slurm:
    """The queue; jobs have the numbers 1, 2 and so on, and nothing runs them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "slurm"
        for name in ("bin", "jobs"):
            (self._folder / name).mkdir(parents=True)
        programs = {"sbatch": _SBATCH, "squeue": _SQUEUE, "sacct": _UNKNOWN, "scontrol": _UNKNOWN}
        for name, program in programs.items():
            (self._folder / "bin" / name).write_text(program)
            (self._folder / "bin" / name).chmod(0o755)
        self.end_all()
        monkeypatch.setenv("PATH", f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    @property
    def jobs(self) -> dict[str, tuple[str, str]]:
        """Of each job so far, ended ones too: its name, and those it waits for."""
        return {path.name: self._name_and_needs(path) for path in sorted((self._folder / "jobs").iterdir())}

    def words(self, number: int) -> list[str]:
        """What `sbatch` was given."""
        return (self._folder / "jobs" / str(number)).read_text().splitlines()

    def end(self, number: int) -> None:
        """Take a job out of the queue."""
        queue = self._folder / "queue"
        lines = [line for line in queue.read_text().splitlines(keepends=True) if not line.startswith(f"{number}|")]
        queue.write_text("".join(lines))

    def begin(self, number: int) -> None:
        """A machine takes a job."""
        queue = self._folder / "queue"
        queue.write_text(queue.read_text().replace(f"{number}|PENDING|", f"{number}|RUNNING|"))

    def end_all(self) -> None:
        """Empty the queue."""
        (self._folder / "queue").write_text("")

    def add(self, line: str) -> None:
        """A job of somebody else's, as `squeue` shows it."""
        with (self._folder / "queue").open("a") as file:
            file.write(f"{line}\n")

    def _name_and_needs(self, path: Path) -> tuple[str, str]:
        words = path.read_text().splitlines()
        waits = [word.partition("afterok:")[2] for word in words if word.startswith("--dependency=")]
        return words[words.index("--job-name") + 1], "".join(waits)
