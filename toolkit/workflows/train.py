"""`toolkit train` from settings to ranks: a run is resolved, checked and written to its folder before ranks start.

A run on the bundled corpus, Wikipedia text that travels with the package, has it made into shards where it is missing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.core.errors import SettingsError
from toolkit.core.locks import locked_file
from toolkit.data import MANIFEST_NAME
from toolkit.engine.gpus import num_devices
from toolkit.run import RunFolder, RunSettings, load_run, run_presets
from toolkit.run.load import read_without_objectives, to_toml
from toolkit.run.resolve import Outcome, divide_run, resolve_run
from toolkit.run.step_plan import BatchPlans, StepPlan, schedule_of
from toolkit.workflows.launch import launch_ranks, what_is_left
from toolkit.workflows.probe import check_probe

QUICKSTART_DATA = Path(__file__).resolve().parent.parent / "quickstart"
_SPLITS = {"train": "wikipedia-train.parquet", "validation": "wikipedia-validation.parquet"}


def train_run(
    source: str,
    overrides: Sequence[str],
    *,
    ds_config: str | None,
    num_procs: int | None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Resolve a run, start it, and return its exit code.

    Args:
        source: run file or preset.
        overrides: `a.b=value`.
        ds_config: a DeepSpeed JSON or the name of a shipped one; None or "auto": chosen.
        num_procs: ranks on this machine; None: one per GPU, else one.
        is_stopped: whether a stop was asked for before there are ranks.

    Raises:
        UserError: the run cannot start.
    """
    settings = load_run(source, overrides)
    try:
        prepare_if_named(settings)
        ranks = num_procs or num_devices()
        run = resolve_run(settings, ds_config=ds_config, num_ranks=ranks)
        check_probe(settings)
        step = run.data.schedule.total_steps
        if run.is_finished and run.folder.settings_file.is_file() and not _lacks_probes(run.settings, step):
            print(Outcome(step, step, was_finished=True), flush=True)
            return 0
        for choice in run.choices:
            print(choice, flush=True)
        with run.folder.reserved():
            with run.folder.locked():
                run.write()
            return launch_ranks(run.folder.path, num_procs=ranks, is_stopped=is_stopped)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what_is_left(RunFolder(settings.run.dir))) from None


def is_complete(folder: RunFolder) -> bool:
    """Whether another start of a run would do nothing; files of its last checkpoint are not hashed.

    Raises:
        SettingsError: the folder has no run.toml that can be read.
    """
    settings = read_without_objectives(folder.settings_file)
    step = schedule_of(settings).total_steps
    return folder.checkpoint(step).is_dir() and not _lacks_probes(settings, step)


def _lacks_probes(settings: RunSettings, step: int) -> bool:
    """Whether scores of a finished run's probe are missing, which a rank would make."""
    if settings.probe is None:
        return False
    from toolkit.training.probing import missing_probes

    return bool(missing_probes(settings, up_to=step))


def show_run(
    source: str,
    overrides: Sequence[str],
    *,
    ds_config: str | None,
    num_procs: int | None,
    device: str | None = None,
    mfu: float = 1.0,
    job_hours: float | None = None,
) -> None:
    """Print the resolved settings as a run file, and below them what follows from them; nothing is started or written.

    A preset may be shown before its corpora and first weights are there.

    Args: as `train_run`, and as `Machines`; without `device`, no time is given.

    Raises:
        UserError: the run could not start.
    """
    # It needs torch, which a run without a GPU is started without.
    from toolkit.run.forecast import Machines, forecast, forecast_memory

    settings = load_run(source, overrides)
    missing = _missing(settings) if source in run_presets() else []
    ranks = num_procs or num_devices()
    machines = None if device is None else Machines(device, mfu, ranks, job_hours)
    if missing:
        plan, _, config, choices = divide_run(settings, ds_config=ds_config, num_ranks=ranks)
        check_probe(settings)
        print(to_toml(settings))
        lines = [*forecast(settings, None, machines=machines), *forecast_memory(settings, plan, config)]
        lines += [*BatchPlans(plan, StepPlan(settings)).describe(), *choices]
        lines += [f"{key} ({path}) does not exist yet" for key, path in missing]
        sizes = "" if settings.model.vocab_size else ", parameters, FLOPs and disk (set model.vocab_size to see them)"
        lines.append(f"what depends on that is left out here: epochs of the corpus, checks against it{sizes}")
    else:
        run = resolve_run(settings, ds_config=ds_config, num_ranks=ranks)
        check_probe(settings)
        print(to_toml(run.settings))
        lines = forecast(run.settings, run.data, machines=machines)
        lines += forecast_memory(run.settings, run.plan, run.ds_config)
        lines += run.data.describe().splitlines()
        lines += [run.start.describe(run.settings), *BatchPlans(run.plan, run.data.plan).describe(), *run.choices]
    for line in lines:
        print(f"# {line}")


def prepare_bundled_corpus(settings: RunSettings) -> None:
    """Make the corpora of a quickstart run, where they are missing. Ranks may call it at the same time."""
    for split in _SPLITS:
        folder = getattr(settings.data, split)
        assert isinstance(folder, str)
        _make(split, Path(folder))


def prepare_if_named(settings: RunSettings) -> None:
    """Make the bundled corpora, where missing, if these settings name one by its folder of the quickstart preset.

    Both, and the training corpus first: the other lies inside its folder.
    """
    shipped = load_run("quickstart")
    if any(getattr(settings.data, split) == getattr(shipped.data, split) for split in _SPLITS):
        prepare_bundled_corpus(shipped)


def _missing(settings: RunSettings) -> list[tuple[str, str]]:
    """Folders that the run reads and that do not exist, each with the setting that names it."""
    data = settings.data
    if isinstance(data.train, str):
        named = [("data.train", data.train)]
    else:
        named = [(f"data.train.{number}.path", entry.path) for number, entry in enumerate(data.train)]
    if data.validation is not None:
        named.append(("data.validation", data.validation))
    if settings.init is not None:
        named.append(("init.from", settings.init.source))
    return [(key, path) for key, path in named if not Path(path).exists()]


def _make(split: str, target: Path) -> None:
    from toolkit.preprocess import PreprocessSettings, preprocess

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{target.parent} cannot be made: {error.strerror}. Start in a folder that can be written."
        ) from None
    with locked_file(target.parent / f".{target.name}.lock"):
        if not (target / MANIFEST_NAME).exists():
            settings = PreprocessSettings(tokenizer=str(QUICKSTART_DATA / "tokenizer"))
            preprocess([str(QUICKSTART_DATA / _SPLITS[split])], target, settings=settings)
