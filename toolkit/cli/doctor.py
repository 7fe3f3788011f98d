"""`toolkit doctor`."""

import typer

from toolkit.cli.options import DsConfig, NumProcs, Overrides, RunSource

EXAMPLES = ("toolkit doctor run.toml", "toolkit doctor run.toml --num-procs 8 --ds-config zero3")


def command(
    run: RunSource, ds_config: DsConfig = None, num_procs: NumProcs = None, overrides: Overrides = None
) -> None:
    """Compare the machines of all ranks, then try a collective and five steps; exit code 2 if anything is wrong."""
    from toolkit.engine.gpus import num_devices
    from toolkit.launching.launch import launch_ranks
    from toolkit.run.load import declare_run

    # A mistake in the run file is reported once, before ranks start.
    declare_run(run, overrides or [])
    arguments = ["--doctor", "--config", run, "--ds_config", ds_config or "auto"]
    arguments += [word for override in overrides or () for word in ("--set", override)]
    raise typer.Exit(launch_ranks(arguments, num_procs=num_procs or num_devices(), last_request=0))
