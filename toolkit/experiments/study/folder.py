"""Folder of a study: the paths of its files."""

from contextlib import AbstractContextManager
from pathlib import Path

from toolkit.core.locks import locked_folder
from toolkit.run.toml_files import read_toml
from toolkit.work.slurm import SlurmJobs


class StudyFolder:
    """The files of one study: the study file with its defaults, the plan as `--json` prints it, runs, and logs."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.runs, self.logs = self.path / "runs", self.path / "logs"
        self.declaration_file, self.summary_file = self.path / "study.toml", self.path / "study.json"

    @property
    def grid(self) -> Path:
        """Folder of its grid: below the study's, also after a move, or where the study file says."""
        below = self.path / "grid"
        if not self.declaration_file.is_file():
            return below
        declared = read_toml(self.declaration_file)
        given = Path(declared["grid"]["dir"])
        return below if given == Path(declared["study"]["dir"]) / "grid" else given

    def jobs(self) -> SlurmJobs:
        """Its Slurm jobs, named `MODEL@STEP`."""
        return SlurmJobs(self.path / "jobs.json")

    def queued(self) -> set[str]:
        """Names of models with jobs in the queue."""
        return {job.rpartition("@")[0] for job in self.jobs().live}

    def log(self, piece: object) -> Path:
        """Log of a piece, by its key."""
        return self.logs / f"{piece}.log"

    def locked(self) -> AbstractContextManager[None]:
        """Lock of the folder, for one command at a time."""
        return locked_folder(
            self.path,
            ".lock",
            timeout=0,
            in_use=f"another command runs the study in {self.path}. Wait for it, or stop it.",
            unwritable=lambda reason: f"could not write to {self.path}: {reason}. Set study.dir to another folder.",
        )
