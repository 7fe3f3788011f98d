"""`toolkit inspect`: contents of a corpus, a run or a checkpoint; progress of many runs, a grid or a corpus."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from toolkit.work.show import View

EXAMPLES = (
    "toolkit inspect data/corpus --rows 5 --set data.sequence_length=512",
    "toolkit inspect runs/mine",
    "toolkit inspect runs/clm-mlm --against runs/mlm",
    "toolkit inspect runs/mine/checkpoints/step-00001000",
    "toolkit inspect runs --watch",
    "toolkit inspect s3://bucket/corpus",
)


def command(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Folder of a corpus, a run, a checkpoint, a grid or of runs; URL of a corpus or of checkpoints.",
        ),
    ],
    rows: Annotated[int, typer.Option(metavar="K", min=0, help="How many rows of a corpus to show.")] = 3,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.KEY=VALUE", help="How rows are built, for example data.windows=blocks."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run of one objective: when did a run that switches to it catch up?"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show runs, a grid or an unfinished corpus live until Ctrl-C.")
    ] = False,
) -> None:
    """Show the contents of a corpus (statistics, lengths, rows), the state of runs, or the contents of a checkpoint."""
    from toolkit import inspection
    from toolkit.storage import is_url

    if watch and (overrides or against):
        raise typer.BadParameter(
            "--set or --against is about one folder, and --watch shows runs. Leave one of them out."
        )
    if is_url(place):
        if watch or against:
            raise typer.BadParameter("--watch and --against are about folders, and DIR is a URL. Leave them out.")
        inspection.inspect_url(place, num_rows=rows, overrides=overrides or [])
        return
    views = {inspection.GRID: _grid, inspection.UNFINISHED: _unfinished}
    if watch:
        try:
            inspection.watch(Path(place), views=views)
        except KeyboardInterrupt:
            # The normal end of --watch: nothing was interrupted.
            raise typer.Exit(INTERRUPTED) from None
    else:
        inspection.inspect(Path(place), num_rows=rows, views=views, overrides=overrides or [], against=against)


def _grid(folder: Path) -> "View":
    from toolkit.experiments.grid.view import grid_at

    return grid_at(folder)


def _unfinished(folder: Path) -> "View":
    from toolkit.preprocess.view import CorpusView

    return CorpusView(folder)
