"""Objects by URL: list, read ranges, write whole; requests are retried while the storage is unreachable.

fsspec picks the file system by the URL's scheme, and its package takes endpoint and keys from the environment
(AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ... or ~/.aws).
"""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenization.hub import is_transient, with_retries
from toolkit.core.errors import UserError
from toolkit.core.files import hash_file, unfinished
from toolkit.core.text import PASSWORD, terminal_safe

WAITS_SECONDS: tuple[float, ...] = (0.5, 1, 2, 4, 8, 15, 30, 60, 60, 60)
"""Waits between tries of one request: four minutes in total, less than ranks wait for one another."""

_RANGE_BYTES = 8 << 20
_CONNECTIONS = 8
# Fields that change with an object's content; they differ by file system.
_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Object:
    """Size of an object, and a version that changes with its content."""

    num_bytes: int
    version: str


def is_url(name: object) -> bool:
    """True for a URL such as s3://bucket/key, False for a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", str(name)) is not None


def list_objects(url: str, *, pattern: str = "") -> dict[str, Object]:
    """Objects below a URL, by name relative to it; an object at the URL itself is named "". Empty if there are none.

    With a pattern, only the objects that it matches there; `**` matches any number of folders.
    """

    def find() -> dict[str, Object]:
        storage, path = _opened(url)
        root = path.rstrip("/")
        found = storage.glob(f"{root}/{pattern}", detail=True) if pattern else storage.find(path, detail=True)
        files = {name: entry for name, entry in sorted(found.items()) if entry["type"] == "file"}
        # One slash only: a key may continue with a second one, and is then a different key.
        return {name.removeprefix(root).removeprefix("/"): _object(entry) for name, entry in files.items()}

    return _asked(url, "list", find)


def modified(url: str) -> float:
    """Time at which an object was last written, in seconds since 1970."""

    def look() -> float:
        storage, path = _opened(url)
        return float(storage.modified(path).timestamp())

    return _asked(url, "look up", look)


def read(url: str, part: tuple[int, int] | None = None) -> bytes:
    """Bytes of a small object, or of a part (first byte, last byte + 1) of an object of any size."""

    def fetch() -> bytes:
        storage, path = _opened(url)
        start, stop = part or (None, None)
        content = bytes(storage.cat_file(path, start=start, end=stop))
        if part is not None and len(content) != part[1] - part[0]:
            raise OSError(f"bytes {part[0]}-{part[1] - 1} arrived incomplete")
        return content

    return _asked(url, "read", fetch)


def download(url: str, path: Path, *, num_bytes: int, sha256: str) -> None:
    """Download an object to a file, several ranges at a time, and fsync it; an error leaves no file.

    Until it is complete, the file is named `unfinished(path)`.

    Raises:
        UserError: the object cannot be read, or its SHA-256 is not the given one; the message names it.
        OSError: the disk is full or the folder cannot be written.
    """
    ranges = [(start, min(start + _RANGE_BYTES, num_bytes)) for start in range(0, num_bytes, _RANGE_BYTES)]

    def fetch(part: tuple[int, int]) -> None:
        os.pwrite(file.fileno(), read(url, part), part[0])

    part_of = unfinished(path)
    try:
        with part_of.open("wb") as file, ThreadPoolExecutor(_CONNECTIONS) as pool:
            file.truncate(num_bytes)
            list(pool.map(fetch, ranges))
            os.fsync(file.fileno())
        if (found := hash_file(part_of)) != sha256:
            raise UserError(
                f"{url} is damaged: expected SHA-256 {sha256[:12]}, found {found[:12]}. Upload that object again."
            )
        part_of.replace(path)
    finally:
        part_of.unlink(missing_ok=True)


def put(path: Path, url: str) -> None:
    """Upload a file as an object, replacing an existing one."""

    def upload() -> None:
        storage, key = _opened(url)
        if "file" in storage.protocol:
            Path(key).parent.mkdir(parents=True, exist_ok=True)
        storage.put_file(str(path), key)

    _asked(url, "write", upload)


def remove(url: str) -> None:
    """Remove an object."""

    def delete() -> None:
        storage, key = _opened(url)
        storage.rm_file(key)

    _asked(url, "remove", delete)


def _opened(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    storage, path = url_to_fs(url, use_listings_cache=False)
    return storage, str(path)


def _object(entry: dict[str, Any]) -> Object:
    version = next((entry[key] for key in _VERSIONS if entry.get(key) is not None), "")
    return Object(int(entry["size"]), str(version).strip('"'))


def _asked(url: str, verb: str, ask: Callable[[], _Result]) -> _Result:
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        raise UserError(
            f"{terminal_safe(url)} is a file on the web, and not object storage (s3://BUCKET/KEY). Download it and "
            "give the file; of a data set on the hub, give its name (organization/name)."
        )
    if PASSWORD.search(url):
        own = f"FSSPEC_{scheme.upper()}_USERNAME and FSSPEC_{scheme.upper()}_PASSWORD"
        raise UserError(
            f"{terminal_safe(url)} holds a password, which run files and logs would show. Leave it out, and set "
            f"{'AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY' if scheme == 's3' else own} in the environment."
        )
    try:
        return with_retries(
            ask,
            waits=WAITS_SECONDS,
            report=lambda text: print(text, flush=True),
            describe=lambda error: f"could not {verb} {url} ({_reason(error)})",
        )
    except Exception as error:
        raise UserError(_message(url, verb, error)) from error


def _message(url: str, verb: str, error: Exception) -> str:
    scheme = url.partition("://")[0]
    if isinstance(error, ImportError):
        package = "s3fs (the extra `remote`)" if scheme == "s3" else f"the fsspec package for {scheme}://"
        return f"{url} needs a package that is not installed ({error}). Install {package}, or give a folder."
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return f"{url}: fsspec knows no scheme {scheme}://. Give s3://BUCKET/KEY, or a folder."
    if isinstance(error, FileNotFoundError):
        remedy = "the bucket and the key, and AWS_ENDPOINT_URL where the storage is not Amazon's"
    elif isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        remedy = "the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and what they allow"
    elif is_transient(error):
        remedy = "the network and AWS_ENDPOINT_URL, and start again; what is finished is kept"
    else:
        remedy = f"the URL, and the settings of {scheme}:// (AWS_ENDPOINT_URL, ~/.aws, FSSPEC_*)"
    return f"could not {verb} {url}: {_reason(error)}. Check {remedy}."


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.strerror is None and "xist" not in str(error):
        return "no such object"
    if isinstance(error, LookupError):
        return repr(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().partition("\n")[0].rstrip(".") or type(error).__name__
