"""`toolkit train`."""

import os
from typing import Annotated

import typer

from toolkit.cli.options import Device, DsConfig, Mfu, NumProcs, Overrides, RunSource
from toolkit.core.errors import SettingsError

EXAMPLES = (
    "toolkit train run.toml",
    "toolkit train 210m --set data.train=data/corpus --set run.dir=runs/mine --dry-run",
    "toolkit train 1b --dry-run --num-procs 64 --device h100 --mfu 0.4 --job-hours 20",
    "toolkit train run.toml --num-procs 8 --ds-config zero3",
)

_THREADS = typer.Option(metavar="N", min=1, help="CPU threads of a rank (default: its share of the cores).")
_UNTIL = typer.Option(metavar="K", min=1, help="Stop after update K, with a checkpoint (default: the end).")


def command(
    run: RunSource,
    ds_config: DsConfig = None,
    num_procs: NumProcs = None,
    overrides: Overrides = None,
    threads: Annotated[int | None, _THREADS] = None,
    until: Annotated[int | None, _UNTIL] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved settings and what the run will cost; start nothing.")
    ] = False,
    device: Device = None,
    mfu: Mfu = 0.4,
    job_hours: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=0.1, help="With --device: print the number of jobs of this length."),
    ] = None,
) -> None:
    """Pretrain an encoder, one objective after another; rerun the command to resume."""
    if job_hours and not device:
        raise SettingsError("--job-hours needs --device: how long the run takes depends on it.")
    if dry_run and until:
        raise SettingsError("--until says where training stops, and --dry-run trains nothing. Leave one of them out.")
    if threads:
        # Inherited by the ranks, and used when a dtype is chosen by measurement.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    if dry_run:
        from toolkit.launching.train import show_run

        show_run(
            run, overrides or [], ds_config=ds_config, num_procs=num_procs, device=device, mfu=mfu, job_hours=job_hours
        )
        return
    if device:
        raise SettingsError("--device and --job-hours are for planning. Add --dry-run, or leave them out.")
    from toolkit.core.console import survive_lost_output
    from toolkit.launching.stop_signals import EarlyStop, nothing_saved

    survive_lost_output()
    try:
        # Before the imports of the next line, which take seconds.
        with EarlyStop() as is_stopped:
            from toolkit.launching.train import train_run

            code = train_run(
                run, overrides or [], ds_config=ds_config, num_procs=num_procs, until=until, is_stopped=is_stopped
            )
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or nothing_saved()) from None
    raise typer.Exit(code)
