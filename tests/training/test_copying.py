"""Copies of checkpoints elsewhere: when they are made, what fails, and runs that begin from them."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resume.test_resume import compare
from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.manifest import manifest_bytes
from toolkit.checkpoint.read import open_checkpoint
from toolkit.checkpoint.retention import CheckpointSettings, drop_moments
from toolkit.core.errors import CheckpointError, SettingsError, UserError
from toolkit.run import remote_checkpoints
from toolkit.run.folder import RunFolder
from toolkit.run.load import declare_run
from toolkit.run.remote_checkpoints import RemoteCheckpoint, copy_checkpoint
from toolkit.run.resolve import resolve_run
from toolkit.storage import objects
from toolkit.training.copying import CopyHook
from toolkit.training.hooks import RetentionHook
from toolkit.training.run_state import RunState

_SHORT = ("schedule.0.steps=2", "schedule.1.steps=2", "lr.warmup_steps=1", "lr.decay_steps=1", "checkpoint.every=1")


@pytest.fixture(autouse=True)
def _no_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WAITS_SECONDS", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Copied:
    """A run folder, the hook that copies its checkpoints, and what it said."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.url, self.said = RunFolder(tmp_path / "run"), f"{tmp_path}/copies", list[str]()
        self.hook = CopyHook(self.folder, self.url, say=self.said.append)
        self._tokenizer = tmp_path / "tokenizer"
        self._tokenizer.mkdir()

    def save(self, *steps: int) -> None:
        for step in steps:
            write_checkpoint(self.folder.checkpoints, step, states=states_of(step), tokenizer_folder=self._tokenizer)
        self.hook.on_checkpoint(steps[-1])

    @property
    def steps(self) -> list[int]:
        """Of the whole copies, newest first."""
        return [step for step, path in step_folders(Path(self.url)) if open_checkpoint(path).manifest.step == step]


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Copied]:
    copied = Copied(tmp_path)
    yield copied
    copied.hook.close(None)


def test_every_checkpoint_is_copied_whole(copied: Copied) -> None:
    for step in (3, 4, 8):
        copied.save(step)
    copied.hook.on_end(RunState(8))
    copied.hook.close(None)
    assert copied.steps == [8, 4, 3]
    found = RemoteCheckpoint.newest(copied.url)
    assert found is not None
    assert (found.manifest.step, found.url) == (8, f"{copied.url}/step-00000008")


def test_one_that_has_lost_its_moments_here_is_not_copied_again(copied: Copied) -> None:
    for step in (3, 4):
        copied.save(step)
    copied.hook.on_end(RunState(4))
    drop_moments(copied.folder.checkpoints, 1)
    copy_checkpoint(copied.folder.checkpoint(3), f"{copied.url}/step-00000003")
    assert open_checkpoint(f"{copied.url}/step-00000003").manifest.has_moments


def test_one_without_its_manifest_is_none(copied: Copied) -> None:
    copied.save(3)
    copied.save(4)
    copied.hook.on_end(RunState(4))
    Path(copied.url, "step-00000004/manifest.json").unlink()
    assert [found.manifest.step for found in [RemoteCheckpoint.newest(copied.url)] if found] == [3]
    assert RemoteCheckpoint.newest(f"{copied.url}/step-00000004") is None


def test_a_copy_that_is_replaced_is_none_until_it_is_whole(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.save(3, 4)
    copied.hook.on_end(RunState(4))
    checkpoint, url = copied.folder.checkpoint(4), f"{copied.url}/step-00000004"
    manifest = open_checkpoint(checkpoint).manifest.model_copy(update={"tokens": 7})
    (checkpoint / "manifest.json").write_bytes(manifest_bytes(manifest))
    given, put = list[str](), remote_checkpoints.put

    def cut(path: Path, url: str) -> None:
        given.append(url)
        if len(given) == 2:
            raise UserError("the machine went away")
        put(path, url)

    monkeypatch.setattr(remote_checkpoints, "put", cut)
    with pytest.raises(UserError, match="went away"):
        copy_checkpoint(checkpoint, url)
    assert [found.manifest.step for found in [RemoteCheckpoint.newest(copied.url)] if found] == [3]
    copy_checkpoint(checkpoint, url)
    assert open_checkpoint(url).manifest.tokens == 7


def test_what_fails_is_told_and_copied_with_the_next_one(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    away = threading.Event()
    away.set()

    def copy(folder: Path, url: str) -> None:
        if away.is_set():
            raise UserError(f"could not write {url}: refused")
        copy_checkpoint(folder, url)

    monkeypatch.setattr(remote_checkpoints, "copy_checkpoint", copy)
    copied.save(3)
    with pytest.raises(CheckpointError, match=r"run could not be copied to checkpoint\.copy_to: could not"):
        copied.hook.on_end(RunState(3))
    assert copied.said[-1].startswith("a checkpoint is not copied yet: could not write")
    away.clear()
    copied.save(4)
    copied.hook.on_end(RunState(4))
    assert copied.steps == [4, 3]


def test_a_checkpoint_that_waits_is_not_deleted(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    is_away = threading.Event()
    monkeypatch.setattr(remote_checkpoints, "copy_checkpoint", lambda *_: is_away.wait(60))
    retention = RetentionHook(copied.folder.checkpoints, CheckpointSettings(keep=1), say=print, in_use=copied.hook)
    copied.save(3, 4)
    retention.on_checkpoint(4)
    assert [step for step, _ in copied.folder.steps()] == [4, 3]
    is_away.set()
    copied.hook.on_end(RunState(4))
    retention.on_end(RunState(4))
    assert [step for step, _ in copied.folder.steps()] == [4]


def test_a_run_whose_folder_is_empty_resumes_from_its_copy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_file, copies = write_run(tmp_path), tmp_path / "copies"
    case = RunCase(str(run_file), overrides=(*_SHORT, f"checkpoint.copy_to={copies}"))
    case()
    assert [step for step, _ in step_folders(copies)] == [4, 3, 2, 1]
    whole = (tmp_path / "run").rename(tmp_path / "whole")
    for step in (3, 4):
        shutil.rmtree(copies / f"step-{step:08d}")
    capfd.readouterr()
    case()
    assert f"downloading the checkpoint {copies}/step-00000002 into the run folder" in (told := capfd.readouterr().out)
    assert "resuming from step 2" in told
    assert compare_from(whole, tmp_path / "run") == []
    assert [step for step, _ in step_folders(copies)] == [4, 3, 2, 1]
    # What a killed process did not copy, a finished run does.
    shutil.rmtree(copies / "step-00000004")
    case()
    assert [step for step, _ in step_folders(copies)] == [4, 3, 2, 1]
    # Older checkpoints here come first, and that is told.
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000004")
    run = resolve_run(declare_run(str(run_file), case.overrides), ds_config="zero0", num_ranks=1)
    assert (run.continuation.is_own, run.continuation.step) == (True, 3)
    assert f"step 3 of the run folder comes before {copies}/step-00000004" in run.division.choices[0]


def test_a_damaged_copy_is_named_with_what_to_do(copied: Copied, tmp_path: Path) -> None:
    copied.save(3)
    copied.hook.on_end(RunState(3))
    found = RemoteCheckpoint.newest(copied.url)
    assert found is not None
    damaged = Path(found.url, min(found.manifest.files))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(
        CheckpointError, match=rf"is damaged: [^$]*\nWithout {found.url}, the newest of those beside it"
    ):
        found.download(tmp_path / "here")
    assert not (tmp_path / "here").exists()


def compare_from(whole: Path, again: Path) -> list[str]:
    """As `compare`, of the steps that a run made again; an empty machine has no lines of those before."""
    lines = (again / "metrics.jsonl").read_text().splitlines(keepends=True)
    (whole / "metrics.jsonl").write_text(
        "".join((whole / "metrics.jsonl").read_text().splitlines(keepends=True)[-len(lines) :])
    )
    return compare(whole, again)


def test_another_run_is_not_resumed_from_there(tmp_path: Path) -> None:
    run_file, copies = write_run(tmp_path), tmp_path / "copies"
    RunCase(str(run_file), overrides=(*_SHORT, "schedule.1.steps=1", f"checkpoint.copy_to={copies}"))()
    overrides = [*_SHORT, "run.seed=8", f"run.dir={tmp_path}/other", f"checkpoint.copy_to={copies}"]
    with pytest.raises(SettingsError, match=r"run\.seed: was 7, now 8") as raised:
        resolve_run(declare_run(str(run_file), overrides), ds_config="zero0", num_ranks=1)
    assert f"Its checkpoint is {copies}/step-00000003: give a new run another checkpoint.copy_to." in str(raised.value)
    # Its first weights may come from there.
    started = [*_SHORT, f"run.dir={tmp_path}/second", f"init.from=file://{copies}"]
    run = resolve_run(declare_run(str(run_file), started), ds_config="zero0", num_ranks=1)
    assert run.settings.init is not None
    assert run.settings.init.source == f"file://{copies}/step-00000003"
    local = [*started[:-1], f"init.from={tmp_path}/run"]
    RunCase(str(run_file), overrides=tuple(started))()
    RunCase(str(run_file), overrides=(*local, f"run.dir={tmp_path}/local"))()
    assert compare(tmp_path / "local", tmp_path / "second") == []
