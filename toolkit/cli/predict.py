"""`toolkit predict`."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import option_of
from toolkit.finetuning.settings import FinetuningSettings

EXAMPLES = (
    "toolkit predict runs/sentiment new.tsv --output runs/answers",
    "toolkit predict runs/nli/model pairs.jsonl --text-columns premise,hypothesis --output runs/answers",
)


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Output of toolkit finetune, or its model/.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file in the format of its test file; labels are optional.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for predictions.jsonl.")],
    text_columns: Annotated[
        str | None, typer.Option(metavar="A[,B]", help="sc: columns of the texts, if not those of the training file.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the label, or of tags.")] = None,
    bad_rows: Annotated[str | None, option_of(FinetuningSettings, "bad_rows", "error|skip")] = None,
    threads: Annotated[int | None, option_of(FinetuningSettings, "threads", "N")] = None,
) -> None:
    """Predict the rows of a file with a fine-tuned model, as toolkit finetune does for its test file."""
    given = {"text_columns": text_columns, "label_column": label_column, "bad_rows": bad_rows, "threads": threads}
    from toolkit.core.console import console
    from toolkit.core.text import counted
    from toolkit.finetuning.predict import predict

    changes = {key: value for key, value in given.items() if value is not None}
    num_rows = predict(model, file, output=output, changes=changes)
    console().print(f"wrote {output}: predictions.jsonl, {counted(num_rows, 'row')}")
