"""`toolkit finetune`: train an encoder on labelled data and score it."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import settings_from


def command(
    task: Annotated[str, typer.Argument(help="sc: sequence classification.")],
    model: Annotated[
        str, typer.Argument(help="An encoder: Hugging Face folder or hub id, or a run or checkpoint of yours.")
    ],
    train: Annotated[
        Path, typer.Option(help="Training file: .tsv .csv .jsonl .parquet with the columns text and label.")
    ],
    test: Annotated[Path, typer.Option(help="File to score on.")],
    output: Annotated[Path, typer.Option(help="Folder for result.json, predictions.jsonl and model/.")],
    validation: Annotated[Path | None, typer.Option(help="Another file to score on, to choose settings by.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides the new head and the order of the examples.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    text_columns: Annotated[str | None, typer.Option(help="Column of the text, or the two of a pair: a,b.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
) -> None:
    """Fine-tune an encoder on a task and score it."""
    from toolkit.core.console import console
    from toolkit.finetuning import FinetuningSettings
    from toolkit.workflows.finetune import finetune

    given = {
        "learning_rate": lr,
        "seed": seed,
        "steps": steps,
        "text_columns": None if text_columns is None else tuple(text_columns.split(",")),
        "label_column": label_column,
    }
    settings = settings_from(FinetuningSettings, given, options={"learning_rate": "--lr"})
    result = finetune(task, model, train=train, test=test, output=output, validation=validation, settings=settings)
    for name, scores in (("validation", result.validation), ("test", result.test)):
        if scores is not None:
            listed = "  ".join(f"{metric} {score:.4f}" for metric, score in scores.items())
            console().print(f"{name}: {listed}")
    console().print(f"always the most frequent label: {result.metric} {result.majority:.4f}")
    console().print(f"written to {output}: result.json, predictions.jsonl, model/")
