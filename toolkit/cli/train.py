"""`toolkit train`."""

from pathlib import Path
from typing import Annotated

import typer

# Not `run_presets()`: what it imports would make `--help` slow.
_PRESETS = ", ".join(sorted(path.stem for path in (Path(__file__).parents[1] / "run" / "presets").glob("*.toml")))

EXAMPLES = (
    "toolkit train run.toml",
    "toolkit train 210m --set data.train=data/corpus --set run.dir=runs/mine --dry-run",
    "toolkit train run.toml --num-procs 8 --ds-config zero3",
)


def command(
    run: Annotated[str, typer.Argument(metavar="RUN.toml|PRESET", help=f"A run file, or a preset: {_PRESETS}.")],
    ds_config: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="DeepSpeed JSON, or a shipped one (default: zero1 or zero2)."),
    ] = None,
    num_procs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of ranks (default: one per GPU, or 1 on CPU).")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=value", help="Change a setting; the value is TOML.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved settings and what the run will take; start nothing.")
    ] = False,
) -> None:
    """Pretrain an encoder, objective after objective; run again in the same folder, it resumes."""
    if dry_run:
        from toolkit.workflows.train import show_run

        show_run(run, overrides or [], ds_config=ds_config, num_procs=num_procs)
        return
    from toolkit.workflows.stop_signals import EarlyStop

    # Before the imports of the next line, which take seconds.
    with EarlyStop() as is_stopped:
        from toolkit.workflows.train import train_run

        code = train_run(run, overrides or [], ds_config=ds_config, num_procs=num_procs, is_stopped=is_stopped)
    raise typer.Exit(code)
