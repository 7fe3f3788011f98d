"""`toolkit report`: tables, tests, figures and one page from grids and runs."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit report grids/clm-share",
    "toolkit report grids/clm-share runs/clm-0 runs/clm-50 --output report",
    "toolkit report grids/clm-share --baseline bert-base",
    "toolkit report studies/shares --scores results",
    "toolkit report runs/mine",
    "toolkit report studies/shares",
)


def command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of grids, of runs (for their losses) and of studies.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Folder to write to [default: report in the first DIR].", show_default=False),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model or configuration to compare all others with.", show_default=False),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="MTEB's results folder, or one with EuroEval's JSON lines, for these models.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write tables with intervals and tests, figures, and report.html from finished grids and runs."""
    from toolkit.experiments.report import write_report

    write_report(folders, output=output, baseline=baseline, scores=scores)
