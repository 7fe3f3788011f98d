"""Objects by URL: what is listed, read and written, what is tried again, and what is told."""

import errno
import hashlib
import socket
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tokenization.hub import is_transient
from toolkit.core.errors import UserError
from toolkit.storage import objects
from toolkit.storage.objects import download, is_url, list_objects, put, read


def test_what_is_put_is_listed_and_read(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    put(tmp_path / "file", f"{bucket}/a/one %")
    put(tmp_path / "file", f"{bucket}/a/b/two")
    assert {name: found.num_bytes for name, found in list_objects(f"{bucket}/a").items()} == {"one %": 10, "b/two": 10}
    assert list(list_objects(f"{bucket}/a/b/two")) == [""]
    assert list_objects(f"{bucket}/c") == {}
    assert read(f"{bucket}/a/b/two") == b"0123456789"
    assert read(f"{bucket}/a/one %", (3, 6)) == b"345"


def test_a_folder_by_its_path_is_a_place_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    put(tmp_path / "file", f"{tmp_path}/deep/er/file")
    assert list(list_objects(f"{tmp_path}/deep")) == ["er/file"]
    assert list(list_objects(f"file://{tmp_path}/deep")) == ["er/file"]


@pytest.mark.parametrize("size", [0, 1, 8, 21])
def test_a_download_is_put_together_from_ranges(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(objects, "_RANGE_BYTES", 4)
    (tmp_path / "file").write_bytes(bytes(range(size)))
    put(tmp_path / "file", f"{bucket}/file")
    sha256 = hashlib.sha256(bytes(range(size))).hexdigest()
    download(f"{bucket}/file", tmp_path / "copy", num_bytes=size, sha256=sha256)
    assert (tmp_path / "copy").read_bytes() == bytes(range(size))
    with pytest.raises(UserError, match=r"memory://bucket/file is damaged: expected SHA-256 aaaaaaaaaaaa, found"):
        download(f"{bucket}/file", tmp_path / "copy", num_bytes=size, sha256="a" * 64)


@pytest.mark.parametrize(("failures", "is_read"), [(2, True), (3, False)])
def test_a_storage_that_is_away_is_asked_again(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, failures: int, is_read: bool
) -> None:
    (tmp_path / "file").write_bytes(b"123")
    put(tmp_path / "file", f"{bucket}/file")
    store = type(fsspec.filesystem("memory"))
    whole, left = store.cat_file, [failures]

    def away(self: Any, *given: Any, **options: Any) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("refused")
        return whole(self, *given, **options)

    monkeypatch.setattr(store, "cat_file", away)
    if is_read:
        assert read(f"{bucket}/file", (1, 3)) == b"23"
    else:
        with pytest.raises(UserError, match=r"could not read memory://bucket/file: refused\. Check the network"):
            read(f"{bucket}/file", (1, 3))


def test_bytes_that_do_not_arrive_are_an_error(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "file").write_bytes(b"123")
    put(tmp_path / "file", f"{bucket}/file")
    with pytest.raises(UserError, match=r"bytes 1-4 arrived incomplete"):
        read(f"{bucket}/file", (1, 5))


class _NoCredentialsError(Exception):
    pass


class _ParamValidationError(Exception):
    pass


class _HTTPStatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_ENDPOINT_ERROR = type("EndpointConnectionError", (type("ConnectionError", (Exception,), {}),), {})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((error, True) for error in (ConnectionResetError(), TimeoutError(), socket.gaierror(), _ENDPOINT_ERROR())),
        *((OSError(number, "x"), True) for number in (errno.EIO, errno.EBUSY, errno.EREMOTEIO)),
        *((OSError(number, "x"), False) for number in (errno.EINVAL, errno.ENOSPC, errno.EACCES, errno.ENOENT)),
        *((_HTTPStatusError(status), status in (429, 503)) for status in (400, 403, 404, 429, 503)),
        *((error, False) for error in (KeyError("x"), ValueError(), TypeError(), AttributeError(), RuntimeError())),
    ],
    ids=repr,
)
def test_what_is_tried_again(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://host/a.jsonl", "http://host/a.jsonl is a file on the web"),
        ("https://user:secret@host/a", "https://...@host/a is a file on the web"),
        ("ftp://me:sec@ret@host/x@y", "ftp://...@host/x@y holds a password"),
    ],
)
def test_urls_that_are_refused_show_no_password(tmp_path: Path, url: str, told: str) -> None:
    (tmp_path / "file").touch()
    for ask in (list_objects, read, lambda url: put(tmp_path / "file", url)):
        with pytest.raises(UserError) as raised:
            ask(url)
        assert told in str(raised.value)
        assert "sec" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError("The specified bucket does not exist"), "bucket does not exist. Check the bucket"),
        (FileNotFoundError("/bucket/file"), "no such object. Check the bucket"),
        (PermissionError("Access Denied"), "Access Denied. Check the keys (AWS"),
        (_NoCredentialsError("Unable to locate credentials"), "Unable to locate credentials. Check the keys (AWS"),
        (ImportError("Install s3fs to access S3"), "needs a package that is not installed (Install s3fs"),
        (KeyError("Contents"), "KeyError('Contents'). Check the URL, and the settings of memory://"),
        (_ParamValidationError("Invalid bucket name"), "Invalid bucket name. Check the URL"),
        (OSError(errno.EINVAL, "InvalidArgument"), "InvalidArgument. Check the URL"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_message_tells_what_to_do_and_nothing_is_tried_again(
    bucket: str, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    asked = []

    def fails(*_: Any, **__: Any) -> bytes:
        asked.append(1)
        raise error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fails)
    with pytest.raises(UserError) as raised:
        read(f"{bucket}/file")
    assert told in str(raised.value)
    assert "memory://bucket/file" in str(raised.value)
    assert asked == [1]


def test_what_is_a_url() -> None:
    assert [is_url(name) for name in ("s3://b/k", "memory://x", "/a/s3://b", "C:/x", "a/b", Path("s3://b"))] == [
        *(True, True),
        *(False,) * 4,
    ]
