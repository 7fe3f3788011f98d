"""`toolkit inspect`: contents of a corpus, a run or a checkpoint, or a table over many runs."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit inspect data/corpus --rows 5 --set data.sequence_length=512",
    "toolkit inspect runs/mine",
    "toolkit inspect runs/clm-mlm --against runs/mlm",
    "toolkit inspect runs/mine/checkpoints/step-00001000",
    "toolkit inspect runs --watch",
)


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus, run or checkpoint, or of runs.")],
    rows: Annotated[int, typer.Option(metavar="K", min=0, help="How many rows of a corpus to show.")] = 3,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.KEY=VALUE", help="How rows are made, for example data.windows=blocks."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run of one objective: when did a run that switches to it catch up?"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the table of runs, or a grid, until Ctrl-C.")] = False,
) -> None:
    """Show what a corpus holds (statistics, lengths, rows), where a run or many stand, or what is in a checkpoint."""
    from toolkit import inspection

    if watch and (overrides or against):
        raise typer.BadParameter(
            "--set or --against is about one folder, and --watch shows runs. Leave one of them out."
        )
    if watch and (folder / "grid.toml").is_file():
        from toolkit.experiments.grid.view import watch_grid

        watch_grid(folder)
    elif watch:
        inspection.watch(folder)
    else:
        inspection.inspect(folder, num_rows=rows, overrides=overrides or [], against=against)
