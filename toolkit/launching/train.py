"""`toolkit train` from settings to ranks: a run is resolved, checked and written to its folder before ranks start."""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.engine.gpus import has_gpu, num_devices
from toolkit.launching.launch import launch_ranks, what_is_left
from toolkit.preprocess.bundled import prepare_if_named
from toolkit.run import RunFolder, RunSettings, run_presets
from toolkit.run.checks import check_wandb
from toolkit.run.division import divide_run, fit_main_memory
from toolkit.run.load import declare_run, declare_settings, read_without_objectives, to_toml
from toolkit.run.remote_checkpoints import copy_missing
from toolkit.run.resolve import Outcome, resolve_run
from toolkit.storage import is_url


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

    `num_procs` are the ranks on this machine (None: one per GPU, else one); `is_stopped` tells whether a stop was
    requested before ranks start; `ds_config` is as in `divide_run`.
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
            print(Outcome(run.folder.path, own.step, last, was_there=True).ending(until), flush=True)
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
    """True if starting the run again would do nothing; used by launchers/slurm.sbatch. Files are not hashed."""
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
    """Print the resolved settings as a run file, followed by the forecast; nothing is started or written.

    A preset may be shown before its corpora and initial weights exist. Without a `device` no time is given.
    """
    # It imports torch, which starting a run without a GPU does not need.
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


def _missing(settings: RunSettings) -> list[tuple[str, str]]:
    """Missing folders that the run would read, each with the setting that names it."""
    data = settings.data
    if isinstance(data.train, str):
        named = [("data.train", data.train)]
    else:
        named = [(f"data.train.{number}.path", entry.path) for number, entry in enumerate(data.train)]
    named += [(f"data.validation.{name}".removesuffix("."), path) for name, path in data.validation_folders.items()]
    if settings.init is not None:
        named.append(("init.from", settings.init.source))
    return [(key, path) for key, path in named if not (is_url(path) or Path(path).exists())]
