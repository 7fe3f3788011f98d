"""`toolkit inspect`: look at a corpus."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus.")],
    rows: Annotated[int, typer.Option(metavar="K", min=0, help="How many rows to show, from the first on.")] = 3,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.KEY=VALUE", help="How rows are made, for example data.windows=blocks."),
    ] = None,
) -> None:
    """Show what a corpus holds: statistics, lengths of its documents, decoded rows with their segments."""
    from toolkit.core.console import console
    from toolkit.data import Corpus, open_rows
    from toolkit.preprocess.inspection import load_tokenizer, measure_lengths, read_segments, row_settings
    from toolkit.preprocess.views import histogram, row_view, rows_line, statistics

    settings = row_settings(folder, overrides or [])
    corpus = Corpus(folder)
    tokenizer = load_tokenizer(corpus)
    lengths = measure_lengths(corpus)
    screen = console()
    screen.print(statistics(corpus, lengths))
    screen.print()
    screen.print(histogram(lengths))
    screen.print()
    # Only now: a corpus without one whole row has its statistics shown before the error.
    made = open_rows(corpus, settings, seed=0)
    screen.print(rows_line(made, settings))
    for row in range(min(rows, made.num_rows)):
        screen.print(row_view(row, read_segments(made, tokenizer, row=row)))
