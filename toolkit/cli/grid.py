"""`toolkit grid`: fine-tune models on tasks at several learning rates and seeds."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit grid grid.toml --dry-run",
    "toolkit grid grid.toml --workers 8",
    "toolkit grid grid.toml --executor slurm --workers 8",
    "toolkit grid grid.toml --executor ray",
)


def command(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="A grid file: models, tasks, rates and seeds.")],
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Worker processes (default: one per GPU, or as the cores allow)."),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where workers run: local (this machine), slurm (N jobs that share the grid) or ray (a Ray cluster).",
        ),
    ] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells, how many are done and what would run; start nothing.")
    ] = False,
) -> None:
    """Fine-tune models on tasks at several learning rates and seeds; rerun it to do what is missing."""
    from toolkit.work.start import ExecutorKind

    kind = ExecutorKind.named(executor)
    from toolkit.core.text import ending, quoted, terminal_safe
    from toolkit.experiments.grid.declaration import load_grid
    from toolkit.experiments.grid.program import run_grid, show_grid

    declared = load_grid(grid)
    if dry_run:
        show_grid(declared)
        return
    code = run_grid(declared, num_workers=workers, executor=kind)
    if kind is not ExecutorKind.SLURM:
        folder = declared.grid.dir
        wrote = f"wrote {folder}: results.jsonl, selected.json, cells/"
        print(terminal_safe(ending(wrote, f"toolkit report {quoted(folder)}")))
    raise typer.Exit(code)
