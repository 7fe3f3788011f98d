"""Run folder: paths of its files, who may write to it, and its checkpoints."""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, step_folders, step_name
from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import Checkpoint, open_unverified
from toolkit.checkpoint.retention import is_complete
from toolkit.core.errors import CheckpointError, CorpusError, SettingsError
from toolkit.core.files import PARTIAL_FILES, atomic_directory, atomic_write, copy_files
from toolkit.core.locks import is_held, locked_folder
from toolkit.core.text import set_option

_NEAREST = 8
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::([1-9]\d*))?")
_LOCK, _STARTER_LOCK = ".lock", ".starter.lock"
# Ranks notice that their starter is gone, and then free their memory. A dead starter's lock is free at once.
_SECONDS_FOR_DYING_RANKS = 15.0
_SECONDS_FOR_A_DYING_STARTER = 1.5


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "run.toml"
        self.ds_config_file = self.path / "deepspeed.json"
        self.continuation_file = self.path / "continuation.json"
        self.metrics_file = self.path / "metrics.jsonl"
        # Lines of repeated steps.
        self.superseded_metrics_file = self.path / "metrics.superseded.jsonl"
        self.tensorboard = self.path / "tensorboard"
        # Record of a divergence.
        self.diverged_file = self.path / "diverged.json"
        self.wandb_file = self.path / "wandb-run-id.txt"
        self.checkpoints = self.path / CHECKPOINTS_FOLDER
        # A copy of the corpus's tokenizer, from which checkpoints get theirs.
        self.tokenizer = self.path / "tokenizer"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint of a step."""
        return self.checkpoints / step_name(step)

    def steps(self) -> list[tuple[int, Path]]:
        """Steps with a checkpoint and their folders, newest first; damaged ones too."""
        return step_folders(self.checkpoints)

    def newest_step(self) -> int:
        """Step of the newest checkpoint that has all its files (not hashed); 0 if absent."""
        return next((step for step, path in self.steps() if is_complete(path)), 0)

    def no_intact_checkpoint(self, damage: list[str]) -> CheckpointError:
        """The error for a run whose checkpoints are all damaged; `damage` says how, for each."""
        return CheckpointError(
            "\n  ".join([f"no checkpoint in {self.checkpoints} is intact:", *damage])
            + "\nCopy one there again, or start again in another run.dir."
        )

    def newest_manifest(self) -> CheckpointManifest | None:
        """Manifest of the newest checkpoint that has all its files (not hashed); None without a checkpoint."""
        newest = newest_whole(self.checkpoints)
        return None if newest is None else newest.manifest

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, created if missing, for the one process that writes a run's files; any other is refused.

        Half-written files of a killed process are removed.
        """
        with _locked(self.path, _LOCK, timeout=_SECONDS_FOR_DYING_RANKS):
            for leftover in self.path.glob(PARTIAL_FILES):
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)
            yield

    def reserved(self) -> AbstractContextManager[None]:
        """Lock the folder for the starter of ranks, which lock it seconds later; under other launchers, for rank 0."""
        return _locked(self.path, _STARTER_LOCK, timeout=_SECONDS_FOR_A_DYING_STARTER)

    @property
    def is_in_use(self) -> bool:
        """Return whether a run is at work in it; on another machine only if the file system shares its locks."""
        return any(is_held(self.path / name) for name in (_LOCK, _STARTER_LOCK))

    def write(self, path: Path, text: str) -> None:
        """Write one of its files atomically."""
        try:
            atomic_write(path, text)
        except OSError as error:
            raise SettingsError(
                f"could not write {path}: {error.strerror}. Free space or choose another folder (run.dir); "
                "what was there before is unchanged."
            ) from error

    def write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write deepspeed.json or continuation.json."""
        self.write(path, f"{json.dumps(dict(content), indent=2)}\n")

    def read_json(self, path: Path) -> dict[str, Any]:
        """Read what `write_json` wrote."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"could not read {path}: {error}. Every machine of a run has to see the run folder: set run.dir to a "
                "shared one."
            ) from error
        return content

    def keep_tokenizer(self, source: Path, hashes: Mapping[str, str]) -> None:
        """Copy the files of the corpus's tokenizer here, so that checkpoints do not need the corpus folder."""
        old = self.path / ".tokenizer.old"
        try:
            shutil.rmtree(old, ignore_errors=True)
            with atomic_directory(self.tokenizer) as folder:
                copy_files(source, folder, hashes)
                if self.tokenizer.exists():
                    self.tokenizer.rename(old)
        except OSError as error:
            raise CorpusError(
                f"could not copy the tokenizer {source} to {self.tokenizer}: {error}. Make the first readable and the "
                "second writable."
            ) from error
        shutil.rmtree(old, ignore_errors=True)


def newest_whole(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in a folder that has all its files (not hashed); a CheckpointError if there are checkpoints
    but none is complete.
    """
    damage: CheckpointError | None = None
    for _, path in step_folders(folder):
        try:
            checkpoint = open_unverified(path)
            checkpoint.check_sizes()
            return checkpoint
        except CheckpointError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def found_near(recorded: str, run: Path) -> Path:
    """Path of a checkpoint or run that a run's file names: as recorded, else beside the run, in case both were moved or
    the path is relative to the folder that the run was started in.
    """
    path, depth = Path(recorded), 1
    if CHECKPOINTS_FOLDER in path.parts[-2:]:
        depth += len(path.parts) - path.parts.index(CHECKPOINTS_FOLDER, len(path.parts) - 2)
    beside = run.parent.joinpath(*path.parts[-depth:])
    return beside if beside.exists() and not path.exists() else path


def range_of(steps: str) -> range | None:
    """The steps of `all` or `A..B:EVERY` (B included); None for any other text."""
    found = _RANGE.fullmatch(steps)
    if found is None:
        return range(sys.maxsize) if steps == "all" else None
    return range(int(found[1]), int(found[2]) + 1, int(found[3] or 1))


def kept_checkpoints(run: Path, steps: Sequence[int], *, asked: str, option: str) -> list[tuple[int, Path]]:
    """Steps and folders of the kept checkpoints among `steps`, by step; a list needs all of them, a range at least one.

    `asked` begins the messages; `option` is the option that names the steps.
    """
    folder = RunFolder(run)
    kept = sorted(step for step, _ in folder.steps())
    if not kept:
        what = "is not the folder of a run that has saved one" if run.is_dir() else "is not a directory"
        raise SettingsError(
            f"{asked} stands for checkpoints of a run, and {run} {what}. Give the folder of a run, or leave "
            f"{option} out."
        )
    wanted = [step for step in kept if step in steps]
    missing = [] if isinstance(steps, range) else [step for step in steps if step not in kept]
    if missing or not wanted:
        first = missing[0] if missing else steps[0]
        near = sorted(sorted(kept, key=lambda step: abs(step - first))[:_NEAREST])
        what = f"step {first} of {run} is not a kept checkpoint" if missing else f"{run} keeps none of them"
        raise SettingsError(
            f"{asked}: {what}; the nearest kept ones are {', '.join(map(str, near))}. Give some of the kept steps; "
            "checkpoint.keep_at in a run's file keeps others."
        )
    return [(step, folder.checkpoint(step)) for step in wanted]


def check_own_folder(named: RunFolder, file: Path) -> None:
    """Refuse a run file that is beside a run's checkpoints but would start another run in the folder that it names.

    It is meant to resume that run, but its folder was moved, or its path is relative to another working directory.
    """
    # The file may be a link to a run's file.
    here = next((folder for folder in (file.parent, file.resolve().parent) if RunFolder(folder).steps()), None)
    path = named.path
    if here is None or (path.is_dir() and path.samefile(here)):
        return
    raise SettingsError(
        f"{file} is in the folder of a run with checkpoints, but its run.dir is another folder: "
        f"{path}{'' if path.is_absolute() else f', which is {path.absolute()} from here'}.\n"
        f"To resume that run: {set_option('run.dir', here)}. To start a new one: --set run.dir=NEW_FOLDER."
    )


def _locked(folder: Path, name: str, *, timeout: float) -> AbstractContextManager[None]:
    return locked_folder(
        folder,
        name,
        timeout=timeout,
        in_use=f"another run is training in {folder}.\nWait for it, stop it, or set run.dir to another folder.",
        unwritable=lambda reason: f"the run folder {folder} is not writable: {reason}.\nSet run.dir to one that is.",
    )
