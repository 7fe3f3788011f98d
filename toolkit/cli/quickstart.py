"""`toolkit quickstart`."""

from typing import Annotated

import typer


def command(
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train with MLM alone, and show both curves; takes longer.")
    ] = False,
) -> None:
    """See the whole path work on bundled text, in minutes and without a network; ends with runs/quickstart/report.html.

    Interrupted and started again, it goes on where it was; finished stages are used as they are.
    """
    from toolkit.workflows.quickstart import run_quickstart

    raise typer.Exit(run_quickstart(compare=compare))
