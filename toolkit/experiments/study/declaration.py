"""STUDY.toml: a base run file, and blocks of models that differ from it, read and validated."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from toolkit.core.files import check_folder
from toolkit.core.settings import Settings, validated
from toolkit.experiments.grid.declaration import GridSettings, PathText, ReportSettings, TaskEntry
from toolkit.run.toml_files import find_toml, read_toml
from toolkit.work.slurm import SlurmSettings

PUBLISHED = "published"
"""Names of models as the paper's authors gave them; see `toolkit.experiments.study.names`."""

PRESETS = Path(__file__).parent / "presets"
_NEEDED = {
    "study": "A study needs [study] with base: a run file, or the name of a preset.",
    "study.base": "It is the run that the models differ from: a run file, or the name of a preset.",
    "models": 'A study needs at least one [[models]], for example axes.schedule = ["mlm 12k", "clm 3k + mlm 9k"].',
}
Step = Annotated[int, Field(gt=0)]
_Sources = Annotated[tuple[PathText, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class StudySettings(Settings):
    """Settings shared by all models."""

    base: PathText
    """A run file or a preset: the run that the models differ from. Models with a schedule of their own do not have
    its `[[schedule]]`."""
    names: str = Field(PUBLISHED, min_length=1)
    """`published`, or a template with fields of axes and labels, such as `clm-{clm_share}-seed-{seed}`."""
    keep: tuple[Step, ...] = Field((), strict=False)
    """Steps whose checkpoints stay, and are fine-tuned, of every model that trains them before its learning rate
    decays."""
    adopt: tuple[PathText, ...] = Field((), strict=False)
    """Folders of runs that were trained before; models begin from their checkpoints where they are alike so far."""
    dir: PathText = "studies"
    """Folder of the runs and of what is made of them; default: `studies/<name of the file>`."""


class RewarmSettings(Settings):
    """How the learning rate restarts after the model named by `from`."""

    peak: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Unset: `lr.peak`."""
    warmup_steps: int | None = Field(None, ge=0)
    """Unset: `lr.warmup_steps`."""
    decay_steps: int | None = Field(None, ge=0)
    """Unset: `lr.decay_steps`."""
    optimizer: Literal["keep", "reset"] = "keep"
    """`reset`: its moments are set to zero there."""


class ModelBlock(Settings):
    """Models that differ along axes: one for each combination of their values."""

    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run file that all models of the block have."""
    axes: dict[str, Any] = Field(default_factory=dict)
    """By key of the run file a list of its values; or by a name of its own a table of fragments of a run file."""
    sources: _Sources = Field((), alias="from", strict=False)
    """Models of this study, or folders of finished runs: their schedules come first. One needs no list."""
    rewarm: RewarmSettings | None = None
    """With `from`."""
    keep: tuple[Step, ...] = Field((), strict=False)
    """As `study.keep`, of the models of the block alone, counted from the first weights, also with `from`; a step that
    they share with others, such as those of a source, is kept by the run that makes it, and has that run's name."""


class MachineSettings(Settings):
    """Resources for training one model; if there are more, several models train in parallel."""

    gpus: int | None = Field(None, ge=1)
    """GPUs of a node; unset: all of them, or none where there are none."""
    nodes: int = Field(1, ge=1)
    """Machines."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of a model, without GPUs; unset: all cores."""
    ds_config: str | None = Field(None, min_length=1)
    """DeepSpeed file, as `toolkit train` takes it."""
    tflops: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Model TFLOP/s that a device is known to reach, for estimates of hours."""


class PieceJobSettings(SlurmSettings):
    """Jobs of `--executor slurm`; each trains a part of a run."""

    shortest_steps: int = Field(0, ge=0)
    """A job that would have fewer steps is not cut off from the one before it."""


class Study(Settings):
    """A study file."""

    study: StudySettings
    """What all models share."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the run file that all models have."""
    models: tuple[ModelBlock, ...] = Field(min_length=1, strict=False)
    """Blocks of models."""
    machine: MachineSettings = MachineSettings()
    """Where one model trains."""
    slurm: PieceJobSettings = PieceJobSettings()
    """Jobs of `--executor slurm`."""
    grid: GridSettings = GridSettings()
    """What all cells of its grid share, as in a grid file; `grid.dir` is by default `grid` in the study's folder."""
    task: tuple[TaskEntry, ...] = Field((), strict=False)
    """Tasks that all models are fine-tuned on, as in a grid file."""
    report: ReportSettings = ReportSettings()
    """What figures of its report show, as in a grid file."""

    @property
    def job_options(self) -> tuple[str, ...]:
        """Options of each `sbatch`: the machine's GPUs, then the file's options, which win."""
        gpus = () if self.machine.gpus is None else (f"--gpus-per-node={self.machine.gpus}",)
        return (*gpus, *self.slurm.options)


def load_study(source: str) -> Study:
    """Load the study of a file or of a shipped name; `study.dir` defaults to `studies/<name>`."""
    path = find_toml(source, PRESETS, what="study file")
    raw = read_toml(path, expected="study")
    if isinstance(raw.get("study"), dict):
        base = raw["study"].get("base")
        if isinstance(base, str) and not Path(base).exists() and (path.parent / base).is_file():
            raw["study"]["base"] = str(path.parent / base)
        raw["study"] = {"dir": f"studies/{path.stem}", **raw["study"]}
        if isinstance(raw.get("grid", {}), dict):
            raw["grid"] = {"dir": f"{raw['study']['dir']}/grid", **raw.get("grid", {})}
    study = validated(Study, raw, origin=str(path), needed=_NEEDED)
    check_folder(study.study.dir, "study.dir")
    check_folder(study.grid.dir, "grid.dir")
    return study
