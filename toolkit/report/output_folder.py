"""The folder of a report: its files are replaced as a whole, and nothing else in it is touched.

A list in the folder has the SHA-256 of every file that a report wrote, in the form of `sha256sum`. The next report
removes those that it does not write itself, unless their content has changed since: then they are somebody's own. The
list is extended before the first file is written and shortened after the last one is removed, so that it lacks no file
at whatever moment a report is killed.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import PARTIAL_FILES, atomic_write, hash_file

LIST_FILE = ".report-files.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_Listed = set[tuple[str, str]]
"""(SHA-256, path in the folder); a path has several while a report is being written."""


def check_output_folder(folder: Path) -> None:
    """Refuse a file and a model's folder; the folder need not exist."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"the output folder {folder} is a file. Choose another one (--output).")
    if (folder / "config.json").is_file():
        raise SettingsError(
            f"the output folder {folder} is that of a model (it has a config.json), which a report leaves as it is. "
            "Choose another one (--output)."
        )


def replace_report(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files of a report, and remove those of an earlier one that are not among them."""
    try:
        for path in files:
            # A folder inside may be a link to one elsewhere.
            if not _is_inside(folder, path):
                raise UserError(
                    f"the report's file {path} would lie outside {folder}, in {(folder / path).parent.resolve()}. "
                    "Remove the link there, or choose another folder (--output)."
                )
        folder.mkdir(parents=True, exist_ok=True)
        earlier = _read_list(folder)
        written = {(_hash(content), path) for path, content in files.items()}
        _write_list(folder, earlier | written)
        for path, content in files.items():
            _write(folder / path, content)
        for path in {path for _, path in earlier} - files.keys():
            _remove(folder, path, known={digest for digest, other in earlier if other == path})
        _write_list(folder, written)
    except OSError as error:
        raise UserError(
            f"could not write {error.filename or folder}: {error.strerror}. Free space, or choose another folder "
            "(--output)."
        ) from error


def _write(target: Path, content: str | bytes) -> None:
    """Write a file and remove what a killed report left of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}{PARTIAL_FILES}"):
        leftover.unlink(missing_ok=True)
    atomic_write(target, content)


def _is_inside(folder: Path, path: str) -> bool:
    parts = PurePosixPath(path)
    is_below = not parts.is_absolute() and ".." not in parts.parts
    return is_below and (folder / path).parent.resolve().is_relative_to(folder.resolve())


def _remove(folder: Path, path: str, *, known: set[str]) -> None:
    """Remove a file that a report wrote, and the folders that are empty without it."""
    target = folder / path
    if not _is_inside(folder, path) or target.is_symlink() or not target.is_file() or hash_file(target) not in known:
        return
    target.unlink()
    with suppress(OSError):
        for parent in list(target.relative_to(folder).parents)[:-1]:
            (folder / parent).rmdir()


def _read_list(folder: Path) -> _Listed:
    """Files that earlier reports wrote; lines that a stranger has broken tell nothing."""
    with suppress(FileNotFoundError):
        text = (folder / LIST_FILE).read_text(encoding="utf-8", errors="replace")
        return {(match[1], match[2]) for line in text.splitlines() if (match := _LINE.fullmatch(line))}
    return set()


def _write_list(folder: Path, entries: _Listed) -> None:
    lines = (f"{digest}  {path}\n" for digest, path in sorted(entries, key=lambda entry: (entry[1], entry[0])))
    atomic_write(folder / LIST_FILE, "".join(lines))


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
