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
    from toolkit.core.errors import SettingsError

    is_checkpoint = (folder / "manifest.json").is_file()
    is_run = any((folder / name).exists() for name in ("run.toml", "checkpoints"))
    if overrides and (is_checkpoint or is_run):
        raise SettingsError(
            f"--set is about the rows of a corpus, and {folder} is a run or a checkpoint. Leave it out."
        )
    if is_checkpoint:
        _show_checkpoint(folder)
    elif is_run:
        _show_run(folder)
    elif (folder / "corpus.json").exists():
        _show_corpus(folder, rows, overrides or [])
    else:
        raise SettingsError(
            f"{folder} is nothing to inspect: {_found(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
            "(run.toml) or of a checkpoint (manifest.json), as `toolkit preprocess`, `train` and `convert --from-hf` "
            "make them."
        )


def _found(folder: Path) -> str:
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    if (folder / "config.json").is_file():
        return f"it holds a Hugging Face model, which `toolkit convert --from-hf {folder} OUT` makes a checkpoint of"
    if steps := sorted(path.name for path in folder.glob("step-*")):
        return f"it holds checkpoints; look at one of them: toolkit inspect {folder / steps[-1]}"
    if (folder / "unfinished.jsonl").is_file():
        return "its corpus is unfinished; start the same `toolkit preprocess` again"
    return "it holds none of those"


def _show_checkpoint(folder: Path) -> None:
    from toolkit.checkpoint.read import open_unverified
    from toolkit.core.console import console
    from toolkit.training.inspection import checkpoint_views

    screen, checkpoint = console(), open_unverified(folder)
    for view in checkpoint_views(checkpoint):
        screen.print(view)
        screen.print()
    # Last: damage is said below what the checkpoint was meant to be.
    checkpoint.verify()
    screen.print(f"All {len(checkpoint.manifest.files):,} files are as they were written (SHA-256).")


def _show_run(folder: Path) -> None:
    from toolkit.core.console import console
    from toolkit.training.inspection import run_views

    screen = console()
    for view in run_views(folder):
        screen.print(view)
        screen.print()


def _show_corpus(folder: Path, rows: int, overrides: list[str]) -> None:
    from toolkit.core.console import console
    from toolkit.data import Corpus, open_rows, tokens_left_out
    from toolkit.preprocess.inspection import load_tokenizer, measure_lengths, read_segments, row_settings
    from toolkit.preprocess.views import histogram, row_view, rows_line, statistics

    settings = row_settings(folder, overrides)
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
    if (left_out := tokens_left_out(corpus, made, settings)) is not None:
        screen.print(left_out)
    for row in range(min(rows, made.num_rows)):
        screen.print(row_view(row, read_segments(made, tokenizer, row=row)))
