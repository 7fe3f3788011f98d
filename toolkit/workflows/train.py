"""`toolkit train` from settings to ranks: a run is resolved, checked and written to its folder before ranks start.

A run on the bundled corpus, Wikipedia text that travels with the package, has it made into shards where it is missing.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.core.errors import SettingsError
from toolkit.core.locks import locked_file
from toolkit.data import CORPUS_MANIFEST, DataSettings
from toolkit.engine.gpus import has_gpu, num_devices
from toolkit.remote import is_url
from toolkit.run import RunFolder, RunSettings, run_presets
from toolkit.run.checks import check_wandb
from toolkit.run.division import divide_run, fit_main_memory
from toolkit.run.load import declare_run, declare_settings, preset_data, read_without_objectives, to_toml
from toolkit.run.remote_checkpoints import copy_missing
from toolkit.run.resolve import Outcome, resolve_run
from toolkit.workflows.launch import launch_ranks, what_is_left

QUICKSTART_DATA = Path(__file__).resolve().parent.parent / "quickstart"
_SPLITS = {"train": "wikipedia-train.parquet", "validation": "wikipedia-validation.parquet"}


def train_run(
    source: str,
    overrides: Sequence[str],
    *,
    ds_config: str | None,
    num_procs: int | None,
    until: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Resolve the run of a run file or preset, start it, and return its exit code.

    `num_procs` are the ranks on this machine (None: one per GPU, else one); `is_stopped` tells whether a stop was asked
    for before there are ranks; `ds_config` is as in `divide_run`.
    """
    declared = declare_run(source, overrides)
    try:
        prepare_if_named(declared.settings.data)
        ranks = num_procs or num_devices()
        run = resolve_run(declared, ds_config=ds_config, num_ranks=ranks)
        last, own = run.plan.schedule.total_steps, run.continuation
        is_there = run.is_past(min(until or last, last)) and run.folder.settings_file.is_file()
        if is_there:
            if copy_to := run.settings.checkpoint.copy_to:
                copy_missing(run.folder, copy_to, set())
            print(Outcome(own.step, last, was_there=True), flush=True)
            return 0
        for choice in run.division.choices:
            print(choice, flush=True)
        with run.folder.reserved():
            with run.folder.locked():
                run.write()
            arguments = ["--run_dir", str(run.folder.path), *([] if until is None else ["--until", str(until)])]
            code = launch_ranks(arguments, num_procs=ranks, is_stopped=is_stopped)
        if code == 128 + signal.SIGKILL:
            print(what_is_left(declared.folder, how="killed"), file=sys.stderr, flush=True)
        return code
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what_is_left(declared.folder)) from None


def is_complete(folder: RunFolder) -> bool:
    """True where another start of a run would do nothing; launchers/slurm.sbatch asks. Files are not hashed."""
    run = declare_settings(read_without_objectives(folder.settings_file))
    return folder.newest_step() >= run.plan.schedule.total_steps


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

    A preset may be shown before its corpora and first weights are there. Without a `device` no time is given.
    """
    # It needs torch, which a run without a GPU is started without.
    from toolkit.run.forecast import Machines, arithmetic_of, forecast, forecast_here, forecast_memory

    declared = declare_run(source, overrides)
    ranks, about_data, data = num_procs or num_devices(), list[str](), None
    machines = None if device is None else Machines(device, mfu, ranks, job_hours)
    if missing := _missing(declared.settings) if source in run_presets() else []:
        check_wandb(declared.settings)
        run, division = declared, divide_run(declared, ds_config=ds_config, num_ranks=ranks)
        notes = [f"{key} ({path}) does not exist yet" for key, path in missing]
        sizes = (
            "" if run.settings.model.vocab_size else ", parameters, FLOPs and disk (set model.vocab_size to see them)"
        )
        notes.append(f"what depends on that is left out here: epochs of the corpus, checks against it{sizes}")
    else:
        run = prepared = resolve_run(declared, ds_config=ds_config, num_ranks=ranks)
        data, division, notes = prepared.data, prepared.division, []
        about_data = [*data.describe().splitlines(), prepared.continuation.describe(run.settings)]
    print(to_toml(run.settings))
    lines = [*forecast(run, data=data, machines=machines), *forecast_memory(run, division)]
    if machines is None and not has_gpu():
        division = fit_main_memory(run, division, ranks_here=ranks)
        lines += forecast_here(run, division, num_ranks=ranks, flops=arithmetic_of(run, data=data).flops)
    for line in [*lines, *about_data, *division.batches.describe(), *division.choices, *notes]:
        print(f"# {line}")


def prepare_bundled_corpus(data: DataSettings) -> None:
    """Make the corpora of a quickstart run, where they are missing. Ranks may call it at the same time."""
    for split in _SPLITS:
        folder = getattr(data, split)
        assert isinstance(folder, str)
        _make(split, Path(folder))


def prepare_if_named(data: DataSettings) -> None:
    """Make the bundled corpora, where missing, if these settings name one by its folder of the quickstart preset.

    Both, and the training corpus first: the other lies inside its folder.
    """
    shipped = preset_data("quickstart")
    if data.train == shipped.train or shipped.validation in data.validation_folders.values():
        prepare_bundled_corpus(shipped)


def _missing(settings: RunSettings) -> list[tuple[str, str]]:
    """Folders that the run reads and that do not exist, each with the setting that names it."""
    data = settings.data
    if isinstance(data.train, str):
        named = [("data.train", data.train)]
    else:
        named = [(f"data.train.{number}.path", entry.path) for number, entry in enumerate(data.train)]
    named += [(f"data.validation.{name}".removesuffix("."), path) for name, path in data.validation_folders.items()]
    if settings.init is not None:
        named.append(("init.from", settings.init.source))
    return [(key, path) for key, path in named if not (is_url(path) or Path(path).exists())]


def _make(split: str, target: Path) -> None:
    from toolkit.preprocess.program import preprocess
    from toolkit.preprocess.settings import PreprocessSettings

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{target.parent} cannot be made: {error.strerror}. Start in a folder that can be written."
        ) from None
    with locked_file(target.parent / f".{target.name}.lock"):
        if not (target / CORPUS_MANIFEST).exists():
            settings = PreprocessSettings(tokenizer=str(QUICKSTART_DATA / "tokenizer"))
            preprocess([str(QUICKSTART_DATA / _SPLITS[split])], target, settings=settings)
