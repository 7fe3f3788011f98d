"""`toolkit train`."""

from typing import Annotated

import typer

EXAMPLES = (
    "toolkit train run.toml",
    "toolkit train 210m --set data.train=data/corpus --set run.dir=runs/mine --dry-run",
    "toolkit train run.toml --num-procs 8 --ds-config zero3",
)


def command(
    run: Annotated[str, typer.Argument(metavar="RUN.toml|PRESET", help="A run file, or the name of a preset.")],
    ds_config: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help="DeepSpeed JSON; default: the shipped zero2.")
    ] = None,
    num_procs: Annotated[int | None, typer.Option(min=1, help="Ranks; default: one a GPU, else one.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=value", help="Change a setting; the value is TOML.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and leave.")] = False,
) -> None:
    """Pretrain an encoder, objective after objective; run again in the same folder, it resumes."""
    from toolkit.workflows.train import show_run, train_run

    if dry_run:
        show_run(run, overrides or [], ds_config=ds_config, num_procs=num_procs)
        return
    raise typer.Exit(train_run(run, overrides or [], ds_config=ds_config, num_procs=num_procs))
