"""`toolkit train` from settings to ranks: a run is resolved, checked and written to its folder before ranks start."""

from collections.abc import Sequence

from toolkit.engine.ds_config import DEFAULT_DS_CONFIG
from toolkit.run import load_run
from toolkit.run.load import to_toml
from toolkit.run.resolve import resolve_run
from toolkit.workflows.bundled import prepare_if_named
from toolkit.workflows.launch import launch_ranks, num_devices


def train_run(source: str, overrides: Sequence[str], *, ds_config: str | None, num_procs: int | None) -> int:
    """Resolve a run, start it, and return its exit code.

    Args:
        source: run file or preset.
        overrides: `a.b=value`.
        ds_config: a DeepSpeed JSON or the name of a shipped one; None: zero2.
        num_procs: ranks on this machine; None: one per GPU, else one.

    Raises:
        UserError: the run cannot start.
    """
    settings = load_run(source, overrides)
    prepare_if_named(settings)
    ranks = num_procs or num_devices()
    run = resolve_run(settings, ds_config=DEFAULT_DS_CONFIG if ds_config is None else ds_config, num_ranks=ranks)
    with run.folder.reserved():
        with run.folder.locked():
            run.write()
        return launch_ranks(run.folder.path, num_procs=ranks)


def show_run(source: str, overrides: Sequence[str], *, ds_config: str | None, num_procs: int | None) -> None:
    """Print the resolved settings as a run file, and below them what follows from them; nothing is started.

    Args: as `train_run`.

    Raises:
        UserError: the run could not start.
    """
    settings = load_run(source, overrides)
    prepare_if_named(settings)
    name = DEFAULT_DS_CONFIG if ds_config is None else ds_config
    run = resolve_run(settings, ds_config=name, num_ranks=num_procs or num_devices())
    print(to_toml(run.settings))
    for line in run.data.describe().splitlines():
        print(f"# {line}")
    print(f"# {run.start.describe(run.settings)}")
    for phase in run.data.schedule.phases:
        print(f"# steps {phase.start + 1:,} to {phase.stop:,}: {phase.objective}")
    warmup, decay = run.settings.lr.ramps(run.data.schedule.total_steps)
    print(f"# learning rate: {warmup:,} steps of warm-up, {decay:,} of decay")
    print(f"# {run.layout.describe()}, {name}")
