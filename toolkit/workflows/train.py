"""`toolkit train` from settings to ranks: everything that can be refused is refused before anything is started."""

from collections.abc import Sequence

from toolkit.engine.ds_config import DEFAULT_DS_CONFIG
from toolkit.parallel.topology import BatchLayout
from toolkit.run import load_run
from toolkit.run.initial import check_own, describe_start
from toolkit.run.load import to_toml
from toolkit.training.assembly import RunData, open_run_data, resolve_engine
from toolkit.workflows.bundled import prepare_if_named
from toolkit.workflows.launch import launch_ranks, num_devices


def train_run(
    source: str, overrides: Sequence[str], *, ds_config: str | None, num_procs: int | None, is_dry_run: bool
) -> int:
    """Check a run, start it, and return its exit code.

    Args:
        source: run file or preset.
        overrides: `a.b=value`.
        ds_config: a DeepSpeed JSON or the name of a shipped one; None: zero2.
        num_procs: ranks on this machine; None: one a GPU, else one.
        is_dry_run: show the resolved settings instead of starting.

    Raises:
        UserError: what the ranks would refuse, before they are started.
    """
    settings = load_run(source, overrides)
    ds_config = DEFAULT_DS_CONFIG if ds_config is None else ds_config
    ranks = num_procs or num_devices()
    _, layout = resolve_engine(settings, ds_config, num_ranks=ranks)
    prepare_if_named(settings)
    data = open_run_data(settings)
    check_own(data.settings, data.corpora())
    if is_dry_run:
        _show(data, layout, ds_config=ds_config)
        return 0
    return launch_ranks(source, overrides, ds_config=ds_config, num_procs=ranks)


def _show(data: RunData, layout: BatchLayout, *, ds_config: str) -> None:
    """The resolved settings as a run file, and below them what follows from them."""
    print(to_toml(data.settings))
    for line in data.describe().splitlines():
        print(f"# {line}")
    print(f"# {describe_start(data.settings)}")
    for phase in data.schedule.phases:
        print(f"# steps {phase.start + 1:,} to {phase.stop:,}: {phase.objective}")
    warmup, decay = data.settings.lr.ramps(data.schedule.total_steps)
    print(f"# learning rate: {warmup:,} steps of warm-up, {decay:,} of decay")
    print(f"# {layout.describe()}, {ds_config}")
