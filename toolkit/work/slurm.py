"""Slurm jobs, which outlive the command that submits them.

A command that runs again asks which of its jobs are in the queue, and submits only the others. A dependency is no
proof: Slurm treats one on a job that it has forgotten as fulfilled, so each job itself checks for what it needs.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings
from toolkit.core.text import counted, first_few

_SECONDS = 60


class SlurmSettings(Settings):
    """Jobs of `--executor slurm`."""

    options: tuple[str, ...] = Field((), strict=False)
    """Options of each `sbatch`, such as `--partition=gpu`."""


class SlurmJobs:
    """Jobs by name; a file stores the last id of each. `live` are the jobs in the queue; empty without Slurm.

    `remedy`: what to do if Slurm refuses a job.
    """

    def __init__(self, file: Path, *, remedy: str = "Correct slurm.options or [machine] of the file") -> None:
        self._file, self._remedy = file, remedy
        self._ids, self.num_submitted = dict[str, str](), 0
        if file.exists():
            self._ids = json.loads(file.read_text(encoding="utf-8"))
        self._states = _states(self._ids) if self._ids else {}
        self.live = {name: self._ids[name] for name in self._states}

    def keep(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        options: Iterable[str] = (),
        after: Collection[str] = (),
    ) -> None:
        """Submit a job unless it is in the queue, and print its id and state.

        `command` is a script with its arguments, or `--wrap` with a shell line; `after` are ids of jobs that have to
        succeed before it starts: if one does not, Slurm removes this job.
        """
        if name not in self.live:
            before = f"; job {old} ended as {ending}" if (ending := _ending(old := self._ids.get(name, ""))) else ""
            waits = [f"--dependency=afterok:{':'.join(after)}"] if after else []
            # A backslash escapes a pattern character, and disables all other patterns in the name.
            output = re.sub(r"([%\\])", r"\\\1", str(log.absolute()))
            own = ("--job-name", name, "--output", output, "--open-mode=append", "--kill-on-invalid-dep=yes")
            self._submit(name, ["sbatch", "--parsable", *own, *waits, *options, *command])
            self._states[name] = "submitted" + (f", after job {first_few([*after])}" if after else "") + before
        console().print(f"{name}: job {self._ids[name]}, {self._states[name]}")

    def keep_equal(
        self, command: str, folder: Path, name: str, *, most: int, options: Iterable[str], after: Collection[str] = ()
    ) -> None:
        """Submit jobs, all with the same shell line, until `most` are in the queue; their logs go to `folder`."""
        names = [f"{name}-{number}" for number in range(1, most + 1)]
        for job in [*dict.fromkeys([*self.live, *names])][: max(most, len(self.live))]:
            self.keep(job, ["--wrap", command], log=folder / f"{job}.log", options=["--requeue", *options], after=after)
        self.print_counts()

    def is_running(self, name: str) -> bool:
        """True if a job has started."""
        return self._states.get(name, "").startswith("running")

    def print_counts(self) -> None:
        """Print how many jobs were submitted, and how many are in the queue, including these."""
        submitted = counted(self.num_submitted, "job")
        console().print(f"{submitted} submitted, {len(self.live):,} in the queue now; to see them: squeue --me")

    def _submit(self, name: str, command: Sequence[str]) -> None:
        if shutil.which("sbatch") is None:
            raise SettingsError(
                "--executor slurm needs sbatch, which is not on the path. Run it on a machine of a cluster."
            )
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if done.returncode:
            raise SettingsError(
                f"Slurm refuses {name}: {done.stderr.strip()}\nThe command was: {' '.join(command)}\n"
                f"{self._remedy}; the same command goes on."
            )
        self._ids[name] = self.live[name] = done.stdout.strip().partition(";")[0]
        self.num_submitted += 1
        # After each job: the jobs in the queue are known however this command ends.
        atomic_write(self._file, json.dumps(self._ids, indent=2) + "\n")


def _ending(number: str) -> str:
    """How and why a job that left the queue ended; empty if Slurm does not know, or no longer does."""
    asked = ("sacct", "-X", "-n", "-P", "--format=State,Reason,ExitCode", "-j"), ("scontrol", "-o", "show", "job")
    for command in asked if number else ():
        if shutil.which(command[0]) is not None:
            done = subprocess.run([*command, number], capture_output=True, text=True, check=False, timeout=_SECONDS)
            fields = re.findall(r"\b(?:JobState|Reason|ExitCode)=(\S+)", done.stdout)
            fields = fields or done.stdout.strip().split("|")
            if done.returncode == 0 and len(fields) == 3:
                return f"{fields[0].lower()} ({fields[1]}, exit code {fields[2]})"
    return ""


def _states(ids: Mapping[str, str]) -> dict[str, str]:
    """States of this user's jobs in the queue, by name, since another job that reuses an id has another name."""
    if shutil.which("squeue") is None:
        return {}
    command = ["squeue", "--me", "--noheader", "--format=%i|%T|%r|%j"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode:
        raise SettingsError(f"Slurm does not say what is in its queue: {done.stderr.strip()}. Try again later.")
    found = dict[str, str]()
    for line in done.stdout.splitlines():
        number, state, reason, name = line.split("|", 3)
        # Slurm will soon remove a job that waits for a failed one.
        if ids.get(name) == number and reason != "DependencyNeverSatisfied":
            found[name] = state.lower() if reason in ("None", "") else f"{state.lower()} ({reason})"
    return found
