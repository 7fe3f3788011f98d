"""`toolkit inspect` and `toolkit verify`: what a folder holds decides how it is shown and which hashes are compared."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME as CHECKPOINT_MANIFEST
from toolkit.checkpoint.read import open_unverified
from toolkit.core.console import console
from toolkit.core.errors import CheckpointError, CorpusError, NoRowError, SettingsError
from toolkit.core.text import counted, quoted
from toolkit.data import Corpus, open_rows, tokens_left_out, verify_corpus
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
from toolkit.inspection.runs_table import find_runs, runs_table, watch_runs
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
        console().print(runs_table(folder))
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
        f"nothing to inspect in {folder}: {_what_is_in(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
        "(run.toml) or of a checkpoint (manifest.json), as `toolkit preprocess`, `train` and `convert --from-hf` make "
        "them, or a folder with runs below it."
    )


def _what_is_in(folder: Path) -> str:
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
    if (folder / "unfinished" / "begun.json").is_file():
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


def verify(folder: Path) -> list[str]:
    """Read every file that has a hash and compare; returns what to tell the user, and names files that are damaged."""
    if (folder / CHECKPOINT_MANIFEST).is_file():
        return _verify_checkpoints([folder])
    if steps := step_folders(RunFolder(folder).checkpoints) or step_folders(folder):
        return _verify_checkpoints([path for _, path in steps])
    if (folder / CORPUS_MANIFEST).exists():
        found = verify_corpus(folder)
        if found.damaged:
            raise CorpusError(str(found))
        unexpected = [f"{path} does not belong to the corpus; it was not checked." for path in found.unexpected_files]
        return [*unexpected, str(found)]
    raise SettingsError(
        f"nothing to verify in {folder}: {_what_is_in(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
        "with checkpoints or of one checkpoint (manifest.json); their files have hashes."
    )


def _verify_checkpoints(folders: Sequence[Path]) -> list[str]:
    lines, damaged, num_intact = list[str](), list[str](), 0
    for folder in folders:
        try:
            checkpoint = open_unverified(folder)
            checkpoint.verify()
        except CheckpointError as error:
            if folder.exists():
                damaged.append(str(error))
            else:
                lines.append(f"{folder} was deleted meanwhile, as a run does with old checkpoints; it was not checked.")
            continue
        num_intact, files = num_intact + 1, checkpoint.manifest.files
        num_bytes = sum(entry.bytes for entry in files.values())
        lines.append(f"{folder} is intact: {counted(len(files), 'file')}, {num_bytes / 1e6:,.1f} MB.")
    if damaged or not num_intact:
        raise CheckpointError("\n".join(damaged or [*lines, "Run it again."]))
    return lines
