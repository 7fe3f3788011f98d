"""`toolkit finetune`: train an encoder on labelled data and evaluate it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.options import Model, help_rows, option_of, settings_from
from toolkit.core.errors import SettingsError
from toolkit.finetuning.settings import UNTRAINED, FinetuningSettings
from toolkit.tables import ENDINGS

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.finetuning import FinetuningResult

EXAMPLES = (
    "toolkit finetune sc hf-encoder --train train.tsv --test test.tsv --output runs/sentiment",
    "toolkit finetune tc hf-encoder --train eng.train --test eng.testb --output runs/ner",
    "toolkit finetune sc hf-encoder --dataset sst2 --protocol paper --output runs/sst2",
    "toolkit finetune qa hf-encoder --dataset squad --set epochs=2 --set micro_rows=8 --output runs/squad",
    "toolkit finetune ir hf-encoder --train scifact --test scifact --output runs/scifact",
    "toolkit finetune sc runs/mine --train a.jsonl --test b.jsonl --output runs/nli --text-columns premise,hypothesis",
)

_TASKS = "sc: sequence classification. tc: token classification. qa: question answering. ir: retrieval."
_TRAINING_FILE = (
    f"Training file. sc: {' '.join(ENDINGS)} with the columns text and label. tc: CoNLL columns, or tokens and tags. "
    "qa: SQuAD JSON. ir: a BEIR folder, or a table with query, positive and negative."
)
_DATASETS = "A data set on the hub; use files for splits it lacks. `toolkit finetune TASK --help` lists a task's."
_LABEL_TYPES = "sc: class (default), number or set. tc: entity (default) or class."
# Settings with their own option: for all tasks, and for those that read tables.
_OPTIONS = ("protocol", "learning_rate", "seed", "steps", "threads", "bad_rows")
_OF_TABLES = ("text_columns", "label_column", "label_type", "label_separator")
_option = partial(option_of, FinetuningSettings)


def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help=_TASKS)],
    model: Model,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for result.json, predictions.jsonl and model/.")],
    train: Annotated[Path | None, typer.Option(metavar="FILE", help=_TRAINING_FILE)] = None,
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="A second file to evaluate on.")] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="File to evaluate on.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help=_DATASETS)] = None,
    protocol: Annotated[str | None, _option("protocol", "NAME")] = None,
    lr: Annotated[float | None, _option("learning_rate", "RATE")] = None,
    seed: Annotated[int | None, _option("seed", "N")] = None,
    steps: Annotated[int | None, _option("steps", "N")] = None,
    threads: Annotated[int | None, _option("threads", "N")] = None,
    bad_rows: Annotated[str | None, _option("bad_rows", "error|skip")] = None,
    text_columns: Annotated[
        str | None, typer.Option(metavar="A[,B]", help="Column of the text; A,B for text pairs.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the label, or of tags.")] = None,
    label_type: Annotated[str | None, typer.Option(metavar="TYPE", help=_LABEL_TYPES)] = None,
    label_separator: Annotated[
        str | None, typer.Option(metavar="SIGN", help="Between a set's labels; default: ,")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="key=value", help="Change a setting of the lists below; the value is TOML."),
    ] = None,
) -> None:
    """Fine-tune an encoder on a labelled data set and evaluate it.

    With the name of a task, help shows the settings of that task too: toolkit finetune sc --help
    """
    given = {key: value for key, value in locals().items() if key in _OPTIONS + _OF_TABLES} | {"learning_rate": lr}
    from toolkit.core.console import console
    from toolkit.core.text import ending, quoted
    from toolkit.experiments.finetune import finetune
    from toolkit.finetuning import get_task

    if task in UNTRAINED:
        raise SettingsError(f"{task} trains nothing. Score the model: toolkit score {model} --pairs FILE --output DIR")
    family = get_task(task).Settings
    settings = settings_from(family, given, overrides=overrides or (), options={"learning_rate": "--lr"})
    result = finetune(
        task, model, output=output, train=train, test=test, validation=validation, dataset=dataset, settings=settings
    )
    if result.test or result.validation:
        console().print(_scores(result))
    console().print(
        ending(
            f"wrote {output}: result.json, predictions.jsonl (a row per test example), model/",
            f"toolkit predict {quoted(output / 'model')} ROWS --output OUT",
            f"in Python: {get_task(task).usage(output / 'model')}",
        )
    )


def help_sections(words: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings that `--set` changes for every task, and for the task named in `words`, the command line."""
    sections = [("Settings of every task (--set key=value)", help_rows(FinetuningSettings, without=_OPTIONS))]
    if any(not word.startswith("-") for word in words):
        # Takes seconds: importing a task's settings imports its network.
        from toolkit.finetuning import get_task, known_tasks
        from toolkit.finetuning.named.datasets import known_datasets

        for task in [word for word in words if word in known_tasks()][:1]:
            own = help_rows(get_task(task).Settings, without=FinetuningSettings.model_fields)
            named = ", ".join(known_datasets(task))
            sections.append((f"Settings of {task} (--set key=value)", own or [("none", "")]))
            sections.append((f"Data sets of {task} (--dataset NAME)", [(named or "none", "")]))
    return sections


def _scores(result: "FinetuningResult") -> "Table":
    """A line for each split that was evaluated, and the baseline; the main metric is the first column."""
    from toolkit.core.console import columns

    known = result.test or result.validation or {}
    # Sets that are searched separately get their own lines: `NanoNQ_ndcg@10`.
    sets = [name for name in known if name.endswith(f"_{result.metric}")]
    metrics = sorted((name for name in known if name not in sets), key=lambda metric: metric != result.metric)
    table = columns("", "", *metrics)
    for split, scores in (("validation", result.validation), ("test", result.test)):
        if scores:
            table.add_row(split, *(f"{scores[metric]:.4f}" for metric in metrics))
    for name in sets:
        table.add_row(name.removesuffix(f"_{result.metric}"), f"{known[name]:.4f}")
    if result.majority is not None:
        table.add_row("best answer without reading", f"{result.majority:.4f}")
    return table
