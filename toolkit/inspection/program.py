"""`toolkit inspect` and `toolkit verify`: the kind of folder decides how it is shown and which hashes are compared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME as CHECKPOINT_MANIFEST
from toolkit.checkpoint.read import import_hint, open_unverified
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
from toolkit.run.corpora import OpenedCorpora
from toolkit.run.remote_checkpoints import RemoteCheckpoint
from toolkit.storage import list_objects
from toolkit.work.show import View
from toolkit.work.show import watch as watch_view

if TYPE_CHECKING:
    from rich.console import RenderableType

_CHECKPOINT, _CORPUS, _RUN, _RUNS = "is a checkpoint", "is a corpus", "is a run", "holds runs"
GRID, UNFINISHED = "is a grid", "is a corpus in the making"
"""Kinds of folders that other packages show: keys of `Views`."""
_BEGUN = Path("unfinished", "begun.json")
Views = Mapping[str, Callable[[Path], View]]


def inspect(
    folder: Path,
    *,
    num_rows: int,
    views: Views = MappingProxyType({}),
    overrides: Sequence[str] = (),
    against: Path | None = None,
) -> None:
    """Print the contents of a corpus or checkpoint, the progress of a run, grid or unfinished corpus, or a table of all
    runs below a folder.

    `num_rows` rows of a corpus are decoded, made with the overrides (`data.key=value`). A run's switches of objective
    are compared with the run `against`.
    """
    what = _what_is(folder)
    if overrides and what != _CORPUS:
        raise SettingsError(f"--set is about the rows of a corpus, and {folder} {what}. Leave it out.")
    if against is not None and what != _RUN:
        raise SettingsError(f"--against is about the switches of a run, and {folder} {what}. Leave it out.")
    if what == _CHECKPOINT:
        checkpoint = open_unverified(folder)
        _show(checkpoint_views(checkpoint.manifest, folder))
        # Last, so that damage is reported below what the checkpoint should contain.
        checkpoint.verify()
        console().print(f"All {len(checkpoint.manifest.files):,} files are as they were written (SHA-256).")
    elif what == _RUN:
        _show(run_views(RunFolder(folder), None if against is None else RunFolder(against)))
    elif what == _RUNS:
        console().print(runs_table(folder))
    elif what in views:
        console().print(views[what](folder).picture())
    else:
        _show_corpus(Corpus(folder), str(folder), num_rows=num_rows, overrides=overrides)


def inspect_url(url: str, *, num_rows: int, overrides: Sequence[str]) -> None:
    """Print the contents of a corpus in object storage, as `inspect` does, or of the newest checkpoint there."""
    # Searched for by name: a large corpus has many objects, which are listed when it is opened.
    if list_objects(url, pattern=CORPUS_MANIFEST):
        _show_corpus(OpenedCorpora(sizes="check").corpus(url), url, num_rows=num_rows, overrides=overrides)
        return
    if (found := RemoteCheckpoint.newest(url)) is None:
        raise SettingsError(
            f"nothing to inspect at {url}: there is neither a corpus (corpus.json) nor a checkpoint "
            "(manifest.json). Give the URL of a corpus, of a checkpoint, or of a folder of checkpoints."
        )
    if overrides:
        raise SettingsError(f"--set is about the rows of a corpus, and {url} holds checkpoints. Leave it out.")
    _show(checkpoint_views(found.manifest, found.url))
    console().print("Its files were not read; what goes on from it compares each with its hash.")


def watch(folder: Path, *, views: Views) -> None:
    """Show a grid or an unfinished corpus until it is done, or the table of all runs below a folder until Ctrl-C."""
    what = _what_is(folder)
    if what in views:
        watch_view(views[what](folder))
    elif what == _RUNS:
        watch_runs(folder)
    else:
        raise SettingsError(
            f"--watch shows all runs below a folder, and {folder} {what}. Leave it out, or give the folder above."
        )


def _what_is(folder: Path) -> str:
    run = RunFolder(folder)
    if (folder / CHECKPOINT_MANIFEST).is_file():
        return _CHECKPOINT
    if run.settings_file.exists() or run.checkpoints.exists():
        return _RUN
    if (folder / _BEGUN).is_file():
        return UNFINISHED
    if (folder / CORPUS_MANIFEST).exists():
        return _CORPUS
    if (folder / "grid.toml").is_file() and any((folder / name).is_dir() for name in ("cells", ".work")):
        return GRID
    if any(find_runs(folder)):
        return _RUNS
    raise SettingsError(
        f"nothing to inspect in {folder}: {_what_is_in(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
        "(run.toml) or of a checkpoint (manifest.json), as `toolkit preprocess`, `train` and `convert --from-hf` make "
        "them, or a folder with runs below it."
    )


def _what_is_in(folder: Path) -> str:
    """Phrase for what a folder is or contains instead of a corpus, a run or a checkpoint."""
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    if hint := import_hint(folder):
        return f"it holds no corpus, run or checkpoint.{hint.removesuffix('.')}"
    if steps := sorted(path.name for path in folder.glob("step-*")):
        return f"it holds checkpoints; look at one of them: toolkit inspect {quoted(folder / steps[-1])}"
    if (folder / _BEGUN).is_file():
        return "its corpus is unfinished; start the same `toolkit preprocess` again"
    return "it holds no corpus, run or checkpoint"


def _show(views: "Iterable[RenderableType]") -> None:
    for view in views:
        console().print(view)
        console().print()


def _show_corpus(corpus: Corpus, place: str, *, num_rows: int, overrides: Sequence[str]) -> None:
    settings = row_settings(place, overrides)
    tokenizer, lengths, screen = load_tokenizer(corpus), measure_lengths(corpus), console()
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
    """Check every file that has a hash; return lines for the user, or raise an error that names the damaged files."""
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
