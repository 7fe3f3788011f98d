"""`toolkit inspect`: contents of a corpus, a run or a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit inspect data/corpus --rows 5 --set data.sequence_length=512",
    "toolkit inspect runs/mine",
    "toolkit inspect runs/mine/checkpoints/step-00001000",
)


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus, of a run or of a checkpoint.")],
    rows: Annotated[int, typer.Option(metavar="K", min=0, help="How many rows of a corpus to show.")] = 3,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.KEY=VALUE", help="How rows are made, for example data.windows=blocks."),
    ] = None,
) -> None:
    """Show what a corpus holds (statistics, lengths, rows), where a run stands, or what is in a checkpoint."""
    from toolkit.inspection import inspect

    inspect(folder, num_rows=rows, overrides=overrides or [])
