"""GRID.toml: models x tasks x learning rates x seeds, read and validated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from toolkit.core.errors import SettingsError
from toolkit.core.files import check_folder
from toolkit.core.settings import Settings, validated
from toolkit.core.text import home_hint
from toolkit.finetuning.settings import UNTRAINED
from toolkit.run.folder import range_of
from toolkit.run.toml_files import read_toml
from toolkit.work.slurm import SlurmSettings

PAPER_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
_NEEDED = {
    "model": "A grid needs at least one [[model]] with name and path.",
    "task": "A grid needs at least one [[task]] with name, kind, train and test.",
}

RANDOM_WEIGHTS = "random"
"""Reserved model path; write `./random` for a folder of this name."""
UNTRAINED_CELL = {"learning_rates": (0.0,), "seeds": (0,)}
"""Learning rate and seed of the only cell of a task that trains nothing."""

# Valid folder names on every system, and never `.` or `..`.
Name = Annotated[str, Field(pattern=r"^\w[\w.+@-]*$")]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
PathText = Annotated[str, Field(min_length=1)]
Label = str | int | float | bool
LabelNames = Annotated[
    tuple[str, ...], Field(strict=False), BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
Labels = Mapping[str, Label]


class GridSettings(Settings):
    """Settings that all cells share."""

    dir: PathText = "grids"
    """Folder of the results."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2, 3, 4), min_length=1, strict=False)
    """Seeds of each task."""
    learning_rates: tuple[Rate, ...] = Field(default=PAPER_RATES, min_length=1, strict=False)
    """Peak learning rates of each task. Validation chooses one for each model and task."""
    protocol: Literal["standard", "paper"] = "standard"
    """Protocol of inputs and metrics."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer updates of a cell. Unset: 1,000. Under the paper's protocol, data sets that it trains on for one pass
    keep that."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of a cell. Unset: `OMP_NUM_THREADS`, or all cores."""
    keep_models: Literal["none", "chosen", "all"] = "none"
    """Which cells keep their fine-tuned model, in `model/`: none (`false`), those of the chosen learning rates, or all
    (`true`)."""

    @field_validator("keep_models", mode="before")
    @classmethod
    def _read_switch(cls, value: object) -> object:
        """Accept a boolean, which the setting used to be."""
        return ("all" if value else "none") if isinstance(value, bool) else value


class ModelEntry(Settings):
    """A model of the grid."""

    name: Name
    """Name in results, and of its folder below `cells/`."""
    path: PathText
    """A Hugging Face folder or hub id, a run (its newest checkpoint), a checkpoint, or `random`: a twin of the grid's
    first other model, whose weights are drawn from the seed of each cell."""
    steps: Annotated[tuple[int, ...], Field(strict=False)] | str | None = None
    """For a run: one model, `NAME@STEP`, per kept checkpoint listed, with the labels `run` and `training_step`.
    `"all"`, a list, or a range `"A..B"` or `"A..B:EVERY"`."""
    labels: dict[str, Label] = Field(default_factory=dict)
    """Quantities that a report may plot scores against, such as `clm_share = 0.25`."""

    @field_validator("steps", mode="before")
    @classmethod
    def _check_steps(cls, value: object) -> object:
        are_steps = isinstance(value, list | tuple) and all(type(step) is int and step >= 0 for step in value)
        if value is not None and not (range_of(value) if isinstance(value, str) else are_steps and value):
            raise ValueError('expected "all", a list of steps, or a range "A..B" or "A..B:EVERY" with A up to B')
        return value

    @property
    def is_random(self) -> bool:
        """True if this is a twin of another model, with random weights."""
        return self.path == RANDOM_WEIGHTS

    @property
    def chosen(self) -> Sequence[int]:
        """Steps selected by `steps`."""
        return (range_of(self.steps) if isinstance(self.steps, str) else self.steps) or ()


class TaskEntry(Settings):
    """A task of the grid; keys not listed here are settings of its kind, as for `toolkit finetune`."""

    model_config = ConfigDict(extra="allow")

    name: Name
    """Name in results, and of its folder below `cells/MODEL/`."""
    kind: str
    """`sc`, `tc`, `qa`, `ir` or `pairs`."""
    train: PathText | None = None
    """Training file, as `toolkit finetune` takes it."""
    validation: PathText | None = None
    """File that chooses among several learning rates."""
    test: PathText | None = None
    """File whose scores are reported."""
    dataset: str | None = None
    """Data set on the hub; files may add what it lacks."""
    learning_rates: tuple[Rate, ...] | None = Field(default=None, min_length=1, strict=False)
    """Overrides the grid's learning rates."""
    seeds: tuple[Seed, ...] | None = Field(default=None, min_length=1, strict=False)
    """Overrides the grid's seeds."""

    @property
    def is_trained(self) -> bool:
        """True if the task trains; if not, models are scored as they are, in one cell."""
        return trains(self.kind, self.options)

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the task's kind given in the entry."""
        return dict(self.model_extra or {})

    @property
    def files(self) -> dict[str, Path]:
        """Files that are given, by split."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: Path(path) for split, path in given.items() if path is not None}


class ReportSettings(Settings):
    """Figures of `toolkit report`."""

    x: LabelNames | None = None
    """Labels on the x axis, one figure each. Unset: all `labels` of the models; for a study, its axes."""
    lines: LabelNames | None = None
    """Labels that the models of one line share. Unset: as `x`."""
    order: Annotated[tuple[Label, ...], Field(strict=False)] = ()
    """Order of string values in figures; others follow in the order of the models."""


class Grid(Settings):
    """A grid file."""

    grid: GridSettings = Field(default_factory=GridSettings)
    """Settings that all cells share."""
    model: tuple[ModelEntry, ...] = Field(min_length=1, strict=False)
    """The models."""
    task: tuple[TaskEntry, ...] = Field(min_length=1, strict=False)
    """The tasks."""
    slurm: SlurmSettings = SlurmSettings()
    """Jobs of `--executor slurm`."""
    report: ReportSettings = ReportSettings()
    """Figures of `toolkit report`."""

    @model_validator(mode="after")
    def _check(self) -> "Grid":
        mistakes = [
            *_repeated("[[model]]", (entry.name for entry in self.model if entry.steps is None)),
            *_repeated("[[task]]", (entry.name for entry in self.task)),
            *self._mistakes_of_twins(),
            *_alike("[[model]]", {entry.name for entry in self.model}),
            *_alike("[[task]]", {entry.name for entry in self.task}),
            *(mistake for task in self.task for mistake in self._mistakes_of(task)),
        ]
        if mistakes:
            raise ValueError("\n  ".join(mistakes))
        return self

    def rates(self, task: TaskEntry) -> tuple[float, ...]:
        """Learning rates of a task, ascending; 0 if nothing is trained."""
        if not task.is_trained:
            return UNTRAINED_CELL["learning_rates"]
        return tuple(sorted(self.grid.learning_rates if task.learning_rates is None else task.learning_rates))

    def seeds(self, task: TaskEntry) -> tuple[int, ...]:
        """Seeds of a task, ascending."""
        if not task.is_trained:
            return (0,)
        return tuple(sorted(self.grid.seeds if task.seeds is None else task.seeds))

    def options(self, task: TaskEntry) -> dict[str, Any]:
        """Settings of a task's kind; the grid's are the defaults."""
        shared = {"protocol": self.grid.protocol, "steps": self.grid.steps, "threads": self.grid.threads}
        given = task.options
        if task.kind in UNTRAINED:
            shared = {"threads": self.grid.threads}
        elif "epochs" in given:
            del shared["steps"]
        return {key: value for key, value in shared.items() if value is not None} | given

    def _mistakes_of_twins(self) -> Iterator[str]:
        twins = [entry for entry in self.model if entry.is_random]
        if len(twins) == len(self.model):
            yield (
                "every [[model]] has path = 'random', so there is no shape and no tokenizer to take. Add a model with "
                "weights, or write './random' for a folder."
            )
        for entry in twins:
            if entry.steps is not None:
                yield f"[[model]] {entry.name}: steps are of a run, and path = 'random' is none. Leave steps out."

    def _mistakes_of(self, task: TaskEntry) -> Iterator[str]:
        place, rates = f"[[task]] {task.name}", self.rates(task)
        if not task.is_trained:
            is_kind = task.kind in UNTRAINED
            keys = ["train", "learning_rates", "seeds", "learning_rate", "lr", "seed"]
            keys += ["validation", "dataset"] if is_kind else []
            if given := [key for key in keys if key in task.model_fields_set | task.options.keys()]:
                what = repr(task.kind) if is_kind else "steps = 0"
                yield f"{place}: {what} trains nothing, so {', '.join(given)} cannot be set. Leave it out."
            if task.test is None and task.dataset is None:
                remedy = "the file or folder of the pairs" if is_kind else "test, or dataset"
                yield f"{place}: test missing. Give {remedy}."
            return
        yield from _repeated(f"{place}: learning_rates", rates)
        yield from _repeated(f"{place}: seeds", self.seeds(task))
        for key, plural in (("learning_rate", "learning_rates"), ("lr", "learning_rates"), ("seed", "seeds")):
            if key in task.options:
                yield f"{place}: unknown key {key!r}. Did you mean {plural!r}?"
        if {"steps", "epochs"} <= task.options.keys():
            yield f"{place} has steps and epochs. Leave one of the two out."
        missing = [split for split in ("train", "test") if split not in task.files]
        if task.dataset is None and missing:
            yield f"{place}: {' and '.join(missing)} missing. Give train and test, or dataset."
        has_validation = task.validation or task.dataset or self.options(task)["protocol"] == "paper"
        if task.dataset is None and not missing and len(rates) > 1 and not has_validation:
            yield (
                f"{place} has {len(rates)} learning rates and no validation file to choose one by. Give validation, or "
                "a single one in learning_rates."
            )


def trains(kind: str, options: Mapping[str, Any]) -> bool:
    """True if a task of this kind trains anything with these settings."""
    return kind not in UNTRAINED and options.get("steps") != 0


def load_grid(path: Path) -> Grid:
    """Load the grid of a file; `grid.dir` defaults to `grids/<name of the file>`."""
    if not path.exists():
        raise SettingsError(f"grid file {str(path)!r} does not exist.{home_hint(path)} Check the path.")
    if path.is_dir():
        raise SettingsError(f"{path} is a directory. Give the .toml file of a grid.")
    raw = read_toml(path, expected="grid")
    if isinstance(raw.get("grid", {}), dict):
        raw["grid"] = {"dir": f"grids/{path.stem}", **raw.get("grid", {})}
    grid = validated(Grid, raw, origin=str(path), needed=_NEEDED)
    check_folder(grid.grid.dir, "grid.dir")
    return grid


def _repeated(place: str, values: Iterable[object]) -> list[str]:
    seen, repeated = set[object](), dict[object, None]()
    for value in values:
        if value in seen:
            repeated[value] = None
        seen.add(value)
    return [f"{place} {value!r} is there twice. Remove or rename one." for value in repeated]


def _alike(place: str, names: Iterable[str]) -> list[str]:
    """Messages for names that differ only in case: some file systems treat them as one folder."""
    by_folded: dict[str, list[str]] = {}
    for name in sorted(names):
        by_folded.setdefault(name.casefold(), []).append(name)
    return [
        f"{place} {' and '.join(map(repr, alike))} differ in case alone. Rename one."
        for alike in by_folded.values()
        if len(alike) > 1
    ]
