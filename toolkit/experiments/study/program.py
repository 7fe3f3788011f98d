"""`toolkit study`: a family of runs from one file, every common prefix trained once; a rerun does what is missing."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tomli_w

from toolkit.checkpoint.folders import LATEST_NAME, remove_folder
from toolkit.checkpoint.read import open_unverified
from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_directory, atomic_write
from toolkit.core.settings import nearest, validated
from toolkit.core.text import counted, first_few, rounded
from toolkit.experiments.grid.cells import grid_counts
from toolkit.experiments.grid.declaration import Grid, ModelEntry
from toolkit.experiments.study.declaration import Study, load_study
from toolkit.experiments.study.display import show_study
from toolkit.experiments.study.estimate import StudyEstimate, missed_steps, summary
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.models import Model, models_of
from toolkit.experiments.study.names import axis_labels
from toolkit.experiments.study.plan import StudyPlan
from toolkit.experiments.study.tree import Leaf, Tree
from toolkit.run.divergence import read_divergence
from toolkit.run.folder import RunFolder
from toolkit.run.load import to_toml
from toolkit.run.metrics import read_lines
from toolkit.work.slurm import SlurmJobs, SlurmSettings
from toolkit.work.start import ExecutorKind

# Labels that a report reads from the checkpoint itself.
_OF_THE_CHECKPOINT = {"objective", "clm_share", "mask_ratio", "budget_steps", "seed"}


def study_json(source: str, *, only: Sequence[str] = (), tflops: float | None = None) -> str:
    """The plan of a study as one JSON object."""
    study, tree = open_study(source, only=only)
    return json.dumps(_summary(study, tree, tflops), indent=2)


def show_plan(source: str, *, only: Sequence[str] = (), tflops: float | None = None) -> None:
    """Print a study's cost and tree, and what is left if part of it is on disk. Nothing is hashed."""
    study, tree = open_study(source, only=only)
    estimate, screen = StudyEstimate.of(tree), console()
    plan = StudyPlan(study, tree, opened=open_unverified)
    grid = grid_of(study, tree)
    counts = None if grid is None else grid_counts(grid)
    show_study(screen, study, tree, estimate, tflops=tflops or study.machine.tflops, grid=counts)
    if plan.num_steps < tree.shared or StudyFolder(study.study.dir).runs.is_dir():
        trained = sum(plan.done(name) == leaf.model.total_steps for name, leaf in tree.leaves.items())
        screen.print(
            f"trained: {trained:,} of {counted(len(tree.leaves), 'model')}; left: {counted(plan.num_steps, 'step')} in "
            f"{counted(len(plan.pieces), 'piece')}"
        )
        for line in _divergences(plan):
            screen.print(line)
    for note in plan.notes:
        screen.print(note)


def show_model(source: str, name: str) -> None:
    """Print the run file of a model trained alone, with the layout of the first model that it shares steps with."""
    _, tree = open_study(source)
    _named([leaf.model for leaf in tree.leaves.values()], name)
    console().print(to_toml(tree.settings_alone(name)).rstrip())


def show_why(source: str, one: str, other: str) -> None:
    """Print how many steps two models share, and what differs from there on."""
    if one == other:
        raise SettingsError(f"--why names {one} twice. Name two models.")
    models = models_of(load_study(source))
    tree = Tree([_named(models, one), _named(models, other)])
    parting = tree.parting(one, other)
    end = f"from there on, {parting.reason}" if parting.reason else "one is the beginning of the other"
    console().print(f"{one} and {other} share {counted(parting.step, 'step')}: {end}")


def run_study(
    source: str,
    *,
    only: Sequence[str] = (),
    executor: ExecutorKind = ExecutorKind.LOCAL,
    report: Callable[[Path], object] = lambda folder: None,
) -> int:
    """Train what is missing of a study, fine-tune its models on its tasks, and return the exit code: 1 if a model or
    cell failed, after the others are done; else 0, also if models diverged, which is their outcome, if it was asked
    to stop, or if Slurm has the jobs.

    `report` is called with the study's folder once nothing is left except failures.
    """
    study, tree = open_study(source, only=only)
    folder, screen, code = StudyFolder(study.study.dir), console(), 0
    if (grid := grid_of(study, tree)) is not None:
        from toolkit.experiments.grid.inputs import HubAccess
        from toolkit.experiments.grid.plan import GridPlan

        # Missing task files are reported before anything is trained.
        GridPlan(grid.model_copy(update={"model": ()}), hub=HubAccess.CACHED)
    with folder.locked():
        plan = StudyPlan(study, tree)
        for note in plan.notes:
            screen.print(note)
        if plan.pieces and executor is not ExecutorKind.SLURM:
            _check_jobs(folder)
        _write(plan, folder, open_study(source)[1] if only else tree)
        if plan.pieces:
            screen.print(f"{counted(len(plan.pieces), 'piece')} to train in {folder.path}")
            folder.logs.mkdir(exist_ok=True)
            is_left = _train(plan, folder, executor)
            plan = StudyPlan(study, tree)
            if is_left and (plan.pieces or executor is not ExecutorKind.SLURM):
                return 0
            code = 1 if plan.pieces else 0
        _keep_divergences(plan)
    for line in _outcome(plan, folder):
        screen.print(line)
    grid = grid_of(study, tree, made={name: plan.done(name) for name in tree.leaves})
    if grid is None:
        report(folder.path)
        return code
    from toolkit.experiments.grid.folder import GridFolder
    from toolkit.experiments.grid.program import run_grid

    grid_code = run_grid(grid, executor=executor)
    # Slurm jobs still in the queue have not finished the grid.
    if grid_code == 0 and not (executor is ExecutorKind.SLURM and SlurmJobs(GridFolder(grid.grid.dir).jobs_file).live):
        report(folder.path)
    return code or grid_code


def tidy_study(source: str) -> None:
    """Remove the checkpoints of a study that no model starts from any more, and print each.

    A model that is added later, and would have started from one, trains these steps again.
    """
    study, tree = open_study(source)
    folder, screen = StudyFolder(study.study.dir), console()
    with folder.locked():
        plan, freed = StudyPlan(study, tree), 0
        for path in plan.needless():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            remove_folder(path)
            freed += size
            screen.print(f"removed {path} ({rounded(size / 1e9)} GB)")
    screen.print(f"{rounded(freed / 1e9)} GB freed in {folder.path}")


def _write(plan: StudyPlan, folder: StudyFolder, whole: Tree) -> None:
    """Write the summary and declaration of the whole study, the run files of the plan's models, and their last
    checkpoints if other runs have them.
    """
    study, tree = plan.study, plan.tree
    atomic_write(folder.summary_file, json.dumps(_summary(study, whole, study.machine.tflops), indent=2) + "\n")
    atomic_write(
        folder.declaration_file, tomli_w.dumps(study.model_dump(mode="json", by_alias=True, exclude_none=True))
    )
    for name in tree.leaves:
        try:
            _write_run(plan, name)
        except OSError as error:
            raise SettingsError(
                f"could not write {plan.folder(name).settings_file}: {error.strerror or error}. Make its folder "
                "writable, or set study.dir to another one."
            ) from None


def _write_run(plan: StudyPlan, name: str) -> None:
    run, total = plan.folder(name), plan.tree.leaves[name].model.total_steps
    if plan.done(name) >= plan.last(name) and run.settings_file.is_file():
        # The file there says how the run was trained.
        return
    run.path.mkdir(parents=True, exist_ok=True)
    if name not in plan.diverged:
        # A divergence recorded there was with other settings than these.
        run.diverged_file.unlink(missing_ok=True)
    atomic_write(run.settings_file, to_toml(plan.run_file(name)))
    if (last := plan.whole(name)) is not None:
        _take_over(last, run, total)


def _keep_divergences(plan: StudyPlan) -> None:
    """Record a divergence in the folders of all models that would make the same steps."""
    for name, found in plan.diverged.items():
        if read_divergence(plan.folder(name)) is None:
            plan.folder(name).path.mkdir(parents=True, exist_ok=True)
            found.write(plan.folder(name))


def _outcome(plan: StudyPlan, folder: StudyFolder) -> Iterator[str]:
    """Lines on how many models are trained, which diverged, and which are left."""
    names = [*plan.tree.leaves]
    left = [name for name in names if name not in plan.diverged and plan.done(name) < plan.last(name)]
    num_trained = len(names) - len(plan.diverged) - len(left)
    whole = "all" if num_trained == len(names) else f"{num_trained:,}"
    yield f"{whole} of {counted(len(names), 'model')} trained in {folder.path}"
    yield from _divergences(plan)
    if left:
        yield f"not trained: {first_few(left)}"


def _divergences(plan: StudyPlan) -> Iterator[str]:
    for name, found in plan.diverged.items():
        # Files of all models that share the step: any that is left would mark the others again.
        files = [str(plan.folder(other).diverged_file) for other, its in plan.diverged.items() if its == found]
        yield (
            f"{name}: diverged at step {found.step:,}, which stays its outcome while its settings are equal; to train "
            f"it again, remove {' and '.join(files)}"
        )


def _take_over(last: Path, run: RunFolder, step: int) -> None:
    """Make a finished run from another run's checkpoint and its metrics up to there."""
    lines = [line for line in read_lines(RunFolder(last.parents[1])) if line["step"] <= step]
    atomic_write(run.metrics_file, "".join(f"{json.dumps(line)}\n" for line in lines))
    place = run.checkpoint(step)
    with atomic_directory(place) as copy:
        open_unverified(last).copy_to(copy)
        remove_folder(place)
    atomic_write(run.checkpoints / LATEST_NAME, f"{place.name}\n")


def _train(plan: StudyPlan, folder: StudyFolder, executor: ExecutorKind) -> bool:
    """Train the pieces of a plan; return whether some are left to Slurm, or to a rerun after a stop."""
    if executor is ExecutorKind.SLURM:
        from toolkit.experiments.study.slurm import submit_study

        made = {name: 0 if name in plan.diverged else leaf.model.total_steps for name, leaf in plan.tree.leaves.items()}
        submit_study(plan, folder, grid_of(plan.study, plan.tree, made=made))
        return True
    from toolkit.experiments.study.pieces import train_pieces

    return train_pieces(plan, folder, executor=executor)


def _check_jobs(folder: StudyFolder) -> None:
    """Raise `SettingsError` if Slurm jobs train the same models, or will."""
    if live := folder.jobs().live:
        raise SettingsError(
            f"Slurm has {counted(len(live), 'job')} of the study in {folder.path} in its queue, and only one may train "
            f"a model: {first_few([f'{name} ({number})' for name, number in live.items()])}. Wait for them, or end "
            f"them (scancel {' '.join(live.values())}), or take --executor slurm."
        )


def open_study(source: str, *, only: Sequence[str] = ()) -> tuple[Study, Tree]:
    """A study and its tree; with `only`, these models and those that they start from."""
    study = load_study(source)
    models = models_of(study)
    tree = Tree(models, queued=StudyFolder(study.study.dir).queued())
    tree.check_keep()
    # Mistakes in its tasks are reported before anything is trained.
    grid_of(study, tree)
    return study, tree.only([_named(models, name).name for name in only]) if only else tree


def _summary(study: Study, tree: Tree, tflops: float | None) -> dict[str, object]:
    found = summary(tree, StudyEstimate.of(tree), tflops=tflops or study.machine.tflops)
    grid = grid_of(study, tree)
    return found if grid is None else found | {"grid": grid_counts(grid)}


def _named(models: Sequence[Model], name: str) -> Model:
    found = {model.name: model for model in models}
    if name not in found:
        raise SettingsError(f"no model is called {name!r}.{nearest(name, found)} Models: {', '.join(found)}.")
    return found[name]


def grid_of(study: Study, tree: Tree, *, made: Mapping[str, int] | None = None) -> Grid | None:
    """The grid of a study for its models after `made` updates each (None: all); None if there is nothing to do."""
    entries = [
        entry
        for name, leaf in tree.leaves.items()
        for entry in _entries(leaf, made=leaf.model.total_steps if made is None else made[name])
    ]
    if not study.task or not entries:
        return None
    # A whole node, as `launchers/slurm.sbatch` takes for a model.
    slurm = SlurmSettings(options=("--exclusive", "--mem=0", *study.job_options))
    report = study.report
    if report.x is None:
        report = report.model_copy(update={"x": axis_labels(study)})
    parts = {"grid": study.grid, "model": entries, "task": study.task, "slurm": slurm, "report": report}
    return validated(Grid, parts)


def _entries(leaf: Leaf, *, made: int) -> list[ModelEntry]:
    """Entries of a model at its end and at steps that the file keeps (`NAME@STEP`), as far as it is trained."""
    labels = {name: value for name, value in leaf.model.labels.items() if name not in _OF_THE_CHECKPOINT}
    folder = leaf.model.run.folder
    # The run's folder would mean an earlier checkpoint if the last one is damaged.
    last = ModelEntry(name=leaf.name, path=str(folder.checkpoint(leaf.model.total_steps)), labels=labels)
    total = leaf.model.total_steps
    steps = tuple(step for step in sorted(leaf.keep.keys() - missed_steps(leaf)) if step < total and step <= made)
    earlier = last.model_copy(update={"path": str(folder.path), "steps": steps})
    return [*([last] if made >= total else []), *([earlier] if steps else [])]
