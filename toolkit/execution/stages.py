"""A job of several stages over one folder: each is announced, timed, recorded, and run unless it is finished.

A stage is intact when it was made from the same inputs and every file it wrote is still as it was written. The time of
an interrupted attempt counts towards the stage that the next attempt finishes.
"""

import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from toolkit.core.console import console
from toolkit.core.files import atomic_write, hash_file
from toolkit.core.locks import locked_folder
from toolkit.core.settings import Settings


class StageRecord(Settings):
    """The record of one stage."""

    # As null it would not be read again, and all records with it.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    key: str
    """Hash of all inputs."""
    seconds: float = 0.0
    """Wall-clock time spent on it, interrupted attempts included."""
    cpu_seconds: float = 0.0
    """CPU time spent on it, by this process and all it started."""
    files: dict[str, str] | None = None
    """SHA-256 of each file it wrote, by path below the job's folder; None: not finished."""
    facts: dict[str, float] = Field(default_factory=dict)
    """Numbers to keep that are not in its files."""


_STAGES = TypeAdapter(dict[str, StageRecord])


class Stages:
    """The records of one job folder, in `stages.json`; a file that cannot be read counts as no record."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "stages.json"
        self._stages: dict[str, StageRecord] = {}
        try:
            self._stages = _STAGES.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return

    def __getitem__(self, name: str) -> StageRecord:
        return self._stages[name]

    def get(self, name: str) -> StageRecord | None:
        """The record of a stage, finished or not."""
        return self._stages.get(name)

    def is_intact(self, name: str, key: str) -> bool:
        """A stage that is finished, made from these inputs, with its files as they were written."""
        stage = self._stages.get(name)
        if stage is None or stage.key != key or stage.files is None:
            return False
        return all(_hash_or_none(self._folder / file) == expected for file, expected in stage.files.items())

    @contextmanager
    def working(self, name: str, key: str) -> Iterator[None]:
        """Count the time of the block towards a stage, whether the block ends well or not."""
        earlier = self._stages.get(name)
        if earlier is None or earlier.key != key or earlier.files is not None:
            earlier = StageRecord(key=key)
        wall, cpu = time.monotonic(), _cpu_seconds()
        try:
            yield
        finally:
            spent = {
                "seconds": earlier.seconds + time.monotonic() - wall,
                "cpu_seconds": earlier.cpu_seconds + _cpu_seconds() - cpu,
            }
            self._stages[name] = earlier.model_copy(update=spent)
            self._write()

    def finish(self, name: str, outputs: Iterable[Path], *, facts: dict[str, float] | None = None) -> StageRecord:
        """Mark a stage as finished, with its files and folders and numbers to keep, and return its record."""
        paths = sorted(path for output in outputs for path in _files_of(output))
        hashes = {str(path.relative_to(self._folder)): hash_file(path) for path in paths}
        self._stages[name] = self._stages[name].model_copy(update={"files": hashes, "facts": facts or {}})
        self._write()
        return self._stages[name]

    def _write(self) -> None:
        atomic_write(self._path, _STAGES.dump_json(self._stages, indent=1) + b"\n")


class Job:
    """Runs stages in one folder, numbered from 1 to `num_stages`; `num_made` counts those not found finished."""

    def __init__(self, folder: Path, *, num_stages: int) -> None:
        self.folder, self.stages, self.screen = folder, Stages(folder), console()
        self.num_made = 0
        self._num_stages, self._titles = num_stages, dict[str, str]()

    def stage(
        self,
        name: str,
        title: str,
        *,
        key: str,
        outputs: Sequence[Path],
        work: Callable[[], dict[str, float] | None],
    ) -> None:
        """Run one stage, unless it is finished; print its title and time.

        `key` hashes all inputs, `outputs` are files or folders that it writes, and `work` returns numbers to keep.
        """
        self._announce(name, title)
        if self.stages.is_intact(name, key):
            self.screen.print(f"     finished before, in {self.stages[name].seconds:.1f} s")
            return
        with self.stages.working(name, key):
            facts = work()
        self.num_made += 1
        self._close(name, outputs, facts)

    @contextmanager
    def always(self, name: str, title: str) -> Iterator[None]:
        """The block as a stage that always runs."""
        self._announce(name, title)
        with self.stages.working(name, key=""):
            yield
        self._close(name, [], None)

    def records(self) -> dict[str, StageRecord]:
        """Records of the stages so far, by title, in order."""
        return {title: self.stages[name] for name, title in self._titles.items()}

    def _announce(self, name: str, title: str) -> None:
        self._titles[name] = title
        self.screen.print(f"{len(self._titles)}/{self._num_stages}  {title}", style="bold")

    def _close(self, name: str, outputs: Sequence[Path], facts: dict[str, float] | None) -> None:
        stage = self.stages.finish(name, outputs, facts=facts)
        self.screen.print(f"     done in {stage.seconds:.1f} s")


def locked(folder: Path) -> AbstractContextManager[None]:
    """Create the folder of a job and lock it against a second one."""
    return locked_folder(
        folder,
        ".job.lock",
        timeout=0,
        in_use=f"the same job is already running in {folder}. Wait for it, or stop it.",
        unwritable=lambda reason: f"could not write to {folder}: {reason}. Start in a writable folder.",
    )


def hash_of(*inputs: object) -> str:
    """A hash of inputs: a path stands for the bytes of its file, anything else for its JSON."""
    digest = hashlib.sha256()
    for value in inputs:
        text = hash_file(value) if isinstance(value, Path) else json.dumps(value, sort_keys=True)
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def _files_of(output: Path) -> list[Path]:
    if output.is_dir():
        # Hidden files are locks and leftovers, not results.
        return [path for path in output.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return [output]


def _hash_or_none(path: Path) -> str | None:
    try:
        return hash_file(path)
    except (OSError, ValueError):
        return None


def _cpu_seconds() -> float:
    """CPU time of this process, and of every process it started that has ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
