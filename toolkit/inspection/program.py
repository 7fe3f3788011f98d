"""`toolkit inspect`: what a folder holds decides how it is shown."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.checkpoint.manifest import MANIFEST_NAME as CHECKPOINT_MANIFEST
from toolkit.checkpoint.read import open_unverified
from toolkit.core.console import console
from toolkit.core.errors import NoRowError, SettingsError
from toolkit.core.text import quoted
from toolkit.data import Corpus, open_rows, tokens_left_out
from toolkit.data.corpus.manifest import CORPUS_MANIFEST
from toolkit.inspection.corpora import (
    histogram,
    load_tokenizer,
    measure_lengths,
    read_segments,
    row_settings,
    row_view,
    rows_line,
    statistics,
)
from toolkit.inspection.runs import checkpoint_views, run_views
from toolkit.inspection.runs_table import find_runs, show_runs, watch_runs
from toolkit.run import RunFolder

_CHECKPOINT, _CORPUS, _RUN, _RUNS = "is a checkpoint", "is a corpus", "is a run", "holds runs"


def inspect(folder: Path, *, num_rows: int, overrides: Sequence[str] = (), against: Path | None = None) -> None:
    """Print what a corpus holds, where a run stands, what is in a checkpoint, or a table over all runs below a folder.

    Of a corpus `num_rows` rows are decoded; overrides, `data.key=value`, say how they are made. A run's switches of
    objective are compared with the run `against`.
    """
    what = _what_is(folder)
    if overrides and what != _CORPUS:
        raise SettingsError(f"--set is about the rows of a corpus, and {folder} {what}. Leave it out.")
    if against is not None and what != _RUN:
        raise SettingsError(f"--against is about the switches of a run, and {folder} {what}. Leave it out.")
    if what == _CHECKPOINT:
        _show_checkpoint(folder)
    elif what == _RUN:
        screen = console()
        for view in run_views(RunFolder(folder), None if against is None else RunFolder(against)):
            screen.print(view)
            screen.print()
    elif what == _RUNS:
        show_runs(folder)
    else:
        _show_corpus(folder, num_rows, overrides)


def watch(folder: Path) -> None:
    """Show the table over all runs below a folder until Ctrl-C."""
    if (what := _what_is(folder)) != _RUNS:
        raise SettingsError(
            f"--watch shows all runs below a folder, and {folder} {what}. Leave it out, or give the folder above."
        )
    watch_runs(folder)


def _what_is(folder: Path) -> str:
    run = RunFolder(folder)
    if (folder / CHECKPOINT_MANIFEST).is_file():
        return _CHECKPOINT
    if run.settings_file.exists() or run.checkpoints.exists():
        return _RUN
    if (folder / CORPUS_MANIFEST).exists():
        return _CORPUS
    if any(find_runs(folder)):
        return _RUNS
    raise SettingsError(
        f"nothing to inspect in {folder}: {what_is_in(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
        "(run.toml) or of a checkpoint (manifest.json), as `toolkit preprocess`, `train` and `convert --from-hf` make "
        "them, or a folder with runs below it."
    )


def what_is_in(folder: Path) -> str:
    """Words for what a folder has in place of a corpus, a run or a checkpoint."""
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    if (folder / "config.json").is_file():
        command = f"toolkit convert --from-hf {quoted(folder)} OUT"
        return f"it holds a Hugging Face model, which `{command}` makes a checkpoint of"
    if steps := sorted(path.name for path in folder.glob("step-*")):
        return f"it holds checkpoints; look at one of them: toolkit inspect {quoted(folder / steps[-1])}"
    if (folder / "unfinished.jsonl").is_file():
        return "its corpus is unfinished; start the same `toolkit preprocess` again"
    return "it holds no corpus, run or checkpoint"


def _show_checkpoint(folder: Path) -> None:
    screen, checkpoint = console(), open_unverified(folder)
    for view in checkpoint_views(checkpoint):
        screen.print(view)
        screen.print()
    # Last: damage is said below what the checkpoint was meant to be.
    checkpoint.verify()
    screen.print(f"All {len(checkpoint.manifest.files):,} files are as they were written (SHA-256).")


def _show_corpus(folder: Path, num_rows: int, overrides: Sequence[str]) -> None:
    settings = row_settings(folder, overrides)
    corpus = Corpus(folder)
    tokenizer = load_tokenizer(corpus)
    lengths = measure_lengths(corpus)
    screen = console()
    screen.print(statistics(corpus, lengths))
    screen.print()
    screen.print(histogram(lengths))
    screen.print()
    try:
        made = open_rows(corpus, settings, seed=0)
    except NoRowError as error:
        if overrides:
            raise
        screen.print(f"No rows to show: {error}")
        return
    screen.print(rows_line(made, settings))
    if (left_out := tokens_left_out(corpus, made, settings)) is not None:
        screen.print(left_out)
    for row in range(min(num_rows, made.num_rows)):
        screen.print(row_view(row, read_segments(made, tokenizer, row=row)))
