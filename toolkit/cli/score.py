"""`toolkit score`: how often a language model prefers the acceptable sentence of a minimal pair."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import Model, option_of, settings_from
from toolkit.finetuning.settings import MinimalPairsSettings

EXAMPLES = (
    "toolkit score runs/mine --pairs blimp/data --output runs/blimp",
    "toolkit score runs/mine --pairs adjunct_island.jsonl --form causal --output runs/blimp-causal",
)


def command(
    model: Model,
    pairs: Annotated[
        Path,
        typer.Option(metavar="FILE|DIR", help="Pairs: sentence_good, sentence_bad and UID; BLiMP's files work as is."),
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for result.json and predictions.jsonl.")],
    form: Annotated[str | None, option_of(MinimalPairsSettings, "form", "causal|masked")] = None,
    threads: Annotated[int | None, option_of(MinimalPairsSettings, "threads", "N")] = None,
) -> None:
    """Score minimal pairs, zero-shot: accuracy of a language model, overall and per paradigm."""
    settings = settings_from(MinimalPairsSettings, {"form": form, "threads": threads})
    from toolkit.core.console import columns, console
    from toolkit.experiments.finetune import finetune

    result = finetune("pairs", model, test=pairs, output=output, settings=settings)
    front = "" if result.front is None else f", {result.front} in front"
    table = columns("", f"{result.pairs:,} pairs, {result.form}{front}", "accuracy")
    for metric, score in result.test.items():
        table.add_row("all" if metric == result.metric else metric.removeprefix("accuracy_"), f"{score:.4f}")
    console().print(table)
    console().print(f"wrote {output}: result.json, predictions.jsonl")
