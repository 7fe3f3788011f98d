"""Files and folders that appear whole or not at all."""

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

from toolkit.core.errors import UserError
from toolkit.core.files import (
    _private_folder,
    atomic_directory,
    atomic_file,
    atomic_write,
    cache_folder,
    check_folder,
    copy_files,
    hash_file,
    hash_folder,
    is_inner_name,
)


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_has_its_old_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    atomic_write(path, "old")
    with suppress(KeyError), atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old"
        raise KeyError
    assert (path.read_text(), _names(tmp_path)) == ("old", ["run.toml"])
    atomic_write(path, "é")
    assert (path.read_bytes(), _names(tmp_path)) == ("é".encode(), ["run.toml"])


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    with atomic_file(path) as first:
        first.write(b"first, and longer")
        atomic_write(path, b"second")
        assert path.read_bytes() == b"second"
    assert (path.read_bytes(), _names(tmp_path)) == (b"first, and longer", ["cache.json"])


@pytest.mark.parametrize("forced", [1, 2], ids=["the file", "its folder"])
def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: int) -> None:
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == forced:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        atomic_write(tmp_path / "corpus.json", "{}")
    assert raised.value.filename == str(tmp_path / "corpus.json")
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(OSError, match=r"nowhere/corpus\.json'$"):
        atomic_write(tmp_path / "nowhere" / "corpus.json", "{}")


def test_a_folder_appears_whole_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, forced = os.fsync, set()

    def noted(descriptor: int) -> None:
        forced.add(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    out = tmp_path / "new" / "model"
    with atomic_directory(out) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"123")
        assert not out.exists()
    assert hash_folder(out) == {"inner/weights": hashlib.sha256(b"123").hexdigest()}
    assert {"weights", "inner", "new"} < forced
    assert _names(out.parent) == ["model"]


def test_a_folder_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with suppress(KeyError), atomic_directory(tmp_path / "a" / "b" / "model") as folder:
        (folder / "weights").write_bytes(b"123")
        raise KeyError
    assert _names(tmp_path) == []
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(OSError, match="taken"), atomic_directory(tmp_path / "taken"):
        pass
    assert _names(tmp_path) == ["taken"]


def test_a_hash_says_how_far_it_is(tmp_path: Path) -> None:
    content, counts = os.urandom(2_500_000), []
    (tmp_path / "x").write_bytes(content)
    assert hash_file(tmp_path / "x", on_read=counts.append) == hashlib.sha256(content).hexdigest()
    assert (sum(counts), len(counts) > 1) == (2_500_000, True)


def test_names_that_stay_in_their_folder() -> None:
    assert all(map(is_inner_name, ["a", "a/b..c", "..a/ü é.json", ".a"]))
    outside = ["", ".", "..", "../a", "a/../../b", "/a", "a/", "a//b", "./a", "a\n", "a\x1b[2J", "a\x00", "\udc80"]
    assert not any(map(is_inner_name, outside))


def test_a_copy_has_what_is_named_also_behind_links(tmp_path: Path) -> None:
    source, store = tmp_path / "source", tmp_path / "store"
    source.mkdir()
    store.mkdir()
    for path in (source / "a", store / "x"):
        path.write_bytes(b"123")
    (source / "notes").symlink_to(store / "x")
    (source / "folder").symlink_to(store)
    (source / "endless").symlink_to("/dev/zero")
    digest = hashlib.sha256(b"123").hexdigest()
    assert hash_folder(source) == {"a": digest}
    copy_files(source, tmp_path / "copy", {"notes": digest, "folder/x": digest})
    assert _names(tmp_path / "copy") == ["folder", "notes"]
    assert not (tmp_path / "copy" / "notes").is_symlink()
    for name, message in (("endless", "is not a regular file"), ("gone", "No such file")):
        with pytest.raises((UserError, OSError), match=message):
            copy_files(source, tmp_path / "copy", {name: digest})


@pytest.mark.parametrize("name", ["a", "secret"])
def test_a_copy_leaves_nothing_that_a_manifest_does_not_know(tmp_path: Path, name: str) -> None:
    source, secret = tmp_path / "source", tmp_path / "secret"
    source.mkdir()
    for path in (source / "a", secret):
        path.write_bytes(b"123")
    (source / "secret").symlink_to(secret)
    with pytest.raises(UserError, match=rf"source/{name} is damaged: expected SHA-256 0000.*, found a665"):
        copy_files(source, tmp_path / "copy", {name: "0" * 64})
    assert _names(tmp_path / "copy") == []


def test_a_user_without_a_home_has_a_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's bare uid has no HOME and no entry in /etc/passwd."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "encoder-pretraining-toolkit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "encoder-pretraining-toolkit"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such uid")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _private_folder.cache_clear()
    folder = cache_folder()
    assert folder == tmp_path / f"encoder-pretraining-toolkit-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["of another user", "open to all", "a link", "a file"])
def test_a_cache_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "name"
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    elif what == "a file":
        folder.touch(mode=0o600)
    else:
        folder.mkdir()
        folder.chmod(0o777 if what == "open to all" else 0o700)
    if what == "of another user":
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    _private_folder.cache_clear()
    found = _private_folder("name")
    assert found != folder
    assert found.is_dir()
    assert _private_folder("name") == found


@pytest.mark.parametrize("name", ["file", "file/inside", "file/a/b"])
def test_a_folder_to_write_to_is_no_file_and_below_none(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^run.dir=.*/{name}: .*/file is not a directory. Choose another folder"):
        check_folder(tmp_path / name, "run.dir")
    check_folder(str(tmp_path / "new" / "folder"), "run.dir")
    check_folder(tmp_path, "run.dir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
