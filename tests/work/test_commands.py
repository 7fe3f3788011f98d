"""Commands that share a folder: which may join, and what they are told where the file system has no locks."""

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.toy_job import ToyJob, command_at
from toolkit.core.errors import SettingsError
from toolkit.work import commands
from toolkit.work.claims import Claims, Item
from toolkit.work.commands import Command

Join = Callable[..., Command]


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Join:
    """Joins a command of a name."""

    def joined(name: str, key: str = "key") -> Command:
        monkeypatch.setattr(commands, "command_name", lambda: name)
        command = command_at(tmp_path)
        with command.locked():
            command.join(key, otherwise="another key")
        return command

    return joined


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre mounted without it."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_command_with_another_key_is_refused_while_one_runs(join: Join) -> None:
    with join("a", "one"):
        with join("b", "one") as other:
            assert other.others() == ["a"]
        with pytest.raises(SettingsError, match=r"another `toy` \(a\) is running in .* with another key\. Wait for it"):
            join("b", "two")
    with join("b", "two") as alone:
        assert alone.others() == []
    with join("a") as first, join("b") as last:
        first.leave()
        assert last.others() == []


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("locks", ["flock", "no_flock"])
def test_a_claim_is_one_processes_until_it_gives_it_up(
    tmp_path: Path, join: Join, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], locks: str
) -> None:
    if locks == "no_flock":
        request.getfixturevalue(locks)
    with join("a"):
        job = ToyJob(tmp_path, [Item("a"), Item("b")])
        one, other, third = Claims(job), Claims(job), Claims(job)
        assert [item and item.key for item in (one.claim(), other.claim())] == ["a", "b"]
        one.release()
        assert [item and item.key for item in (third.claim(),)] == ["a"]
    said = capsys.readouterr().out
    assert ("has no locks (flock): what a lost machine was at stays taken" in said) == (locks == "no_flock")
    assert (f"remove {job.folder}, and run the same command again" in said) == (locks == "no_flock")
