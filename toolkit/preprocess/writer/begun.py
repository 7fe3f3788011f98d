"""Corpus in progress in a folder, and whether a command may continue it: what is kept, and what is refused."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import atomic_directory, atomic_write, unfinished
from toolkit.core.settings import Record
from toolkit.core.text import counted, first_few
from toolkit.data import CORPUS_MANIFEST, read_manifest
from toolkit.preprocess.screening.documents import forget_screened
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.writer.folder import in_use, remove_rest, unexpected_names
from toolkit.preprocess.writer.groups import (
    BEGUN,
    EXCLUDED,
    UNFINISHED_FOLDER,
    WrittenGroup,
    group_folder,
    group_slices,
    is_unfinished,
    written_groups,
)
from toolkit.work.commands import commands_at, work_folder


class Begun(Record):
    """Record of the corpus in progress in a folder."""

    key: dict[str, Any]
    """Everything that its shards depend on but the backend; with another key they would be others."""
    why_reference: str
    """Why the tokenizer's own backend makes the ids; empty: the fast one does."""
    is_merging: bool = False
    """True once all groups are written and shards are being renamed."""


def read_begun(folder: Path) -> Begun | None:
    """Record of the corpus in progress in a folder; None if absent or damaged."""
    with suppress(OSError, ValidationError):
        return Begun.model_validate_json((folder / UNFINISHED_FOLDER / BEGUN).read_bytes())
    return None


def note_begun(folder: Path, begun: Begun) -> None:
    """Replace the record of the corpus in progress, durably and atomically."""
    atomic_write(folder / UNFINISHED_FOLDER / BEGUN, begun.model_dump_json())


def open_unfinished(folder: Path, key: Mapping[str, Any], settings: PreprocessSettings) -> Begun | None:
    """Decide what stays in the locked folder; return the corpus to resume, or None to start one.

    `key`: everything the shards depend on except the backend, as plain data.
    """
    begun, written, is_replaced = read_begun(folder), written_groups(folder), (folder / CORPUS_MANIFEST).exists()
    if is_unfinished(folder):
        reason = _not_resumable(begun, written, key, settings)
    elif is_replaced:
        reason = _finished(folder)
    elif others := unexpected_names(folder):
        raise UserError(f"the output folder {folder} is not empty and holds no corpus ({others}). Name another folder.")
    else:
        return None
    if reason is None:
        assert begun is not None
        if begun.key != key:
            check_nobody_writes(folder)
            for number in _with_other_sources(written, begun.key["sources"], key["sources"], settings=settings):
                shutil.rmtree(group_folder(folder, number))
            forget_screened(folder / UNFINISHED_FOLDER)
            note_begun(folder, begun := begun.model_copy(update={"key": dict(key)}))
        return begun
    # A corpus without a finished group, started with a mistake in the options, say, can go: nothing is lost.
    if not settings.overwrite and (is_replaced or begun is None or written):
        raise UserError(f"{folder} holds {reason}name another folder, or start over with --overwrite.")
    return None


def _finished(folder: Path) -> str:
    """Description of the finished corpus in the folder."""
    try:
        documents = read_manifest(folder).documents
    except CorpusError:
        return "a damaged corpus: "
    return f"a finished corpus of {counted(documents, 'document')} from other sources or options: "


def _not_resumable(
    begun: Begun | None, written: Mapping[int, WrittenGroup], key: Mapping[str, Any], settings: PreprocessSettings
) -> str | None:
    """Description of the unfinished corpus in a folder if its groups cannot be kept; else None."""
    if begun is None:
        return f"an unfinished corpus whose {UNFINISHED_FOLDER} folder is damaged or of an earlier version: "
    # A group with a source that is excluded now does not count as lost.
    parts, out = (begun.key["sources"], key["sources"]), {name for name, *_, it in key["sources"] if it == EXCLUDED}
    then, now = ([source[:2] if source[0] in out else source for source in part] for part in parts)
    is_lost = begun.is_merging or _with_other_sources(written, then, now, settings=settings)
    changes = _key_changes(begun.key if is_lost else {**begun.key, "sources": key["sources"]}, key)
    kept = counted(sum(group.num_shards for group in written.values()), "finished shard")
    if settings.engine == "reference" and not begun.why_reference:
        changes.append(f"--engine: the fast backend made {kept}, reference now")
    if not changes:
        return None
    lines = "".join(f"\n  {change}" for change in changes)
    return f"an unfinished corpus with {kept} that was started with other settings:{lines}\nResume with the same ones, "


def _with_other_sources(
    written: Collection[int], before: Sequence[Any], after: Sequence[Any], *, settings: PreprocessSettings
) -> list[int]:
    """Written groups whose sources differ between the two lists of all sources."""
    then, now = ([part[its] for its in group_slices([size for _, size, *_ in part])] for part in (before, after))
    changed = [number for number in written if then[number : number + 1] != now[number : number + 1]]
    # What a limit leaves for a group depends on the groups before it.
    return [number for number in written if number >= changed[0]] if changed and settings.is_limited else changed


def _key_changes(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Differences between two keys, one line each, sources by name."""
    found = [
        f"{part}: {_shown(begun.get(part))} then, {_shown(wanted.get(part))} now"
        for part in sorted((begun.keys() | wanted.keys()) - {"sources"})
        if begun.get(part) != wanted.get(part)
    ]
    before, now = ({name: rest for name, *rest in key.get("sources", ())} for key in (begun, wanted))
    changes = {
        "modified": [name for name in now if name in before and before[name] != now[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    found += [f"sources: {len(names):,} {what} ({first_few(names)})" for what, names in changes.items() if names]
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def check_nobody_writes(folder: Path) -> None:
    """Raise a UserError if another command is writing the corpus in a folder."""
    if commands_at(work_folder(folder)):
        raise UserError(in_use(folder))


def start_over(folder: Path, key: Mapping[str, Any], *, why_reference: str) -> None:
    """Remove what an earlier run wrote into the locked folder, and record which corpus is in progress."""
    check_nobody_writes(folder)
    shutil.rmtree(work_folder(folder), ignore_errors=True)  # including failures of the earlier corpus
    # First: groups of the earlier corpus must not be taken for groups of this one.
    forget_unfinished(folder)
    # From here on the folder counts as an unfinished corpus, even if parts of the old one are still there.
    with atomic_directory(folder / UNFINISHED_FOLDER) as new:
        (new / BEGUN).write_text(Begun(key=dict(key), why_reference=why_reference).model_dump_json(), encoding="utf-8")
    remove_rest(folder)


def forget_unfinished(folder: Path) -> None:
    """Remove the unfinished corpus, if any; it counts as removed at once, even if this is interrupted."""
    left = unfinished(folder / UNFINISHED_FOLDER)
    shutil.rmtree(left, ignore_errors=True)
    with suppress(FileNotFoundError):
        (folder / UNFINISHED_FOLDER).rename(left)
    shutil.rmtree(left, ignore_errors=True)
