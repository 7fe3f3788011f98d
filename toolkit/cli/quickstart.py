"""`toolkit quickstart`."""

from typing import Annotated

import typer

EXAMPLES = (
    "toolkit quickstart",
    "toolkit quickstart --compare",
)


def command(
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train with MLM alone and show both curves; takes longer.")
    ] = False,
) -> None:
    """Run the whole pipeline on bundled text, in minutes, without a network; writes runs/quickstart/report.html.

    If interrupted, run it again: what is finished is kept and training resumes.
    """
    from toolkit.quickstart import run_quickstart

    raise typer.Exit(run_quickstart(comparison="mlm-only" if compare else "none"))
