"""Corpora for object storage: written to a local folder, then uploaded, corpus.json last."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from toolkit.core.cache import digest_of
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import cache_folder
from toolkit.core.locks import locked_file
from toolkit.data import CORPUS_MANIFEST
from toolkit.data.corpus.files import OnRead, read_through
from toolkit.data.corpus.manifest import CorpusManifest
from toolkit.preprocess.summary import corpus_ending
from toolkit.preprocess.writer.folder import already_finished
from toolkit.preprocess.writer.groups import is_unfinished
from toolkit.storage import is_url, list_objects, modified, put, read

_Result = TypeVar("_Result")


def write_to(
    output: str,
    write: Callable[[Path], _Result | None],
    *,
    command: Any,
    made_before: Callable[[Path], CorpusManifest | None],
) -> _Result | None:
    """Call `write` with the folder of a corpus: `output`, or for a URL a local folder that is then uploaded to it.

    Started again with the same `command` (plain data), writing and upload resume; a local corpus that waits for upload
    is rebuilt unless `made_before` recognizes its manifest. Return None if other commands have written the corpus
    or still do (`write` returns None), or if `made_before` recognizes the manifest at the URL.
    """
    if not is_url(output):
        return write(Path(output))
    url = output.rstrip("/")
    if list_objects(manifest := f"{url}/{CORPUS_MANIFEST}"):
        changed = modified(manifest)
        with TemporaryDirectory(prefix="corpus-") as name:
            (copy := Path(name) / CORPUS_MANIFEST).write_bytes(read(manifest))
            os.utime(copy, (changed, changed))
            found = made_before(Path(name))
        if found is None:
            raise UserError(f"{url} holds a finished corpus: name another place, or remove what is there yourself.")
        console().print(already_finished(url, found))
        return None
    folder = cache_folder() / "staging" / digest_of([url, command])[:32]
    lock = cache_folder() / f".{folder.name}.lock"
    if _is_finished(folder) and made_before(folder) is None:
        with locked_file(lock):  # once no other command uploads it
            if folder.exists():
                shutil.rmtree(folder)
        return write_to(output, write, command=command, made_before=made_before)
    console().print(f"Writing to {folder} first.")
    result = None if _is_finished(folder) else write(folder)
    # Only one command uploads at a time: another would put corpus.json there while shards are still being uploaded.
    with locked_file(lock):
        if _is_finished(folder):
            _upload(folder, url)
    if folder.exists():
        console().print(f"When it is finished, the same command (without --overwrite) uploads it to {url}.")
    elif result is None:
        console().print(corpus_ending(url))
    return result


def _is_finished(folder: Path) -> bool:
    return (folder / CORPUS_MANIFEST).exists() and not is_unfinished(folder)


def _upload(folder: Path, url: str) -> None:
    """Upload the files of a finished corpus below a URL; each local file is removed once it is uploaded."""
    files = [path for path in folder.rglob("*") if path.is_file() and not _is_left_out(path.relative_to(folder))]
    manifests = sorted((path for path in files if path.name == CORPUS_MANIFEST), key=lambda path: -len(path.parts))
    others = [path for path in sorted(files) if path.name != CORPUS_MANIFEST]

    def move(path: Path, on_read: OnRead) -> None:
        size = path.stat().st_size
        put(path, f"{url}/{path.relative_to(folder).as_posix()}")
        path.unlink()
        on_read(size)

    size = sum(path.stat().st_size for path in others)
    read_through("Uploading", [partial(move, path) for path in others], num_bytes=size)
    for path in manifests:
        put(path, f"{url}/{path.relative_to(folder).as_posix()}")
    shutil.rmtree(folder)


def _is_left_out(path: Path) -> bool:
    """True if a file is a lock, a file that commands share, or a packing plan, which each machine makes for itself."""
    return any(name.startswith((".", "plans-")) for name in path.parts) or ".plan-" in path.name
