"""Locks, and file systems that have none: there a killed holder is named, with the file to remove."""

import errno
import fcntl
import threading

import pytest

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.locks import holder_of, is_held, locked_file
from toolkit.preprocess.writer.folder import locked_output
from toolkit.run.folder import RunFolder

_GONE = "4194303\nnode-17\n"
_SAID = r"flock\); according to {path}, process 4194303 on node-17 holds it\. If that process no longer runs, remove"


@pytest.fixture
def no_flock(monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("toolkit.run.folder._SECONDS_FOR_DYING_RANKS", 0)
    monkeypatch.setattr("toolkit.core.locks.SECONDS_UNTIL_SAID", 0)


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize(
    ("name", "take"),
    [
        (".lock", lambda folder: RunFolder(folder).locked()),
        (".starter.lock", lambda folder: RunFolder(folder).reserved()),
        (".lock", locked_output),
    ],
)
def test_a_holder_on_another_machine_is_named_with_its_file(tmp_path, name, take):
    """A run, or a corpus being written, whose machine was lost."""
    file = tmp_path / name
    file.write_text(_GONE)
    with pytest.raises((SettingsError, UserError), match=rf"(?s)nother .*{_SAID.format(path=file)}"), take(tmp_path):
        pass
    file.unlink()
    with take(tmp_path):
        assert "holds it" in holder_of(file)
        assert is_held(file)
    assert not file.exists()


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_flock")
def test_who_waits_for_another_machine_says_so(tmp_path, capsys):
    file, entered = tmp_path / ".plans.lock", threading.Event()
    file.write_text(_GONE)

    def wait():
        with locked_file(file):
            entered.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert not entered.wait(0.2)
    file.unlink()
    assert entered.wait(30)
    waiting.join()
    assert capsys.readouterr().out.startswith(f"waiting for the lock {file}\nThe file system has no locks")


def test_where_the_system_has_locks_it_frees_them(tmp_path):
    file = tmp_path / ".plans.lock"
    assert not is_held(file)
    file.write_text("")
    with locked_file(file):
        assert holder_of(file) == ""
        assert is_held(file)
    assert not is_held(file)
    assert holder_of(tmp_path / "none") == ""
