from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.checkpoint import folders
from toolkit.checkpoint.folders import half_removed
from toolkit.checkpoint.read import newest_intact, open_checkpoint
from toolkit.checkpoint.retention import CheckpointSettings, drop_moments, retain
from toolkit.core.errors import CheckpointError
from toolkit.training.hooks import RetentionHook


def steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in root.glob("step-*"))


def test_the_newest_and_the_trunk_stay(write: Callable[..., Path], root: Path) -> None:
    for step in range(10, 80, 10):
        write(step)

    for _ in range(2):
        retain(root, 2, is_kept=lambda step: step % 30 == 0)

        assert steps(root) == [30, 60, 70]
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-00000030", "step-00000060", "step-00000070"]


def test_one_that_lacks_a_file_pushes_no_good_one_out(write: Callable[..., Path], root: Path) -> None:
    for step in (1, 2, 3):
        write(step)
    (root / "step-00000003" / "exp_avg-00000-of-00001.safetensors").unlink()

    retain(root, 1)

    assert steps(root) == [2, 3]
    newest, _ = newest_intact(root)
    assert newest is not None
    assert newest.manifest.step == 2


def test_a_folder_that_cannot_be_removed_is_named(
    write: Callable[..., Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write(step)

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointError, match=r"could not remove .*step-00000001: Permission denied"):
        retain(root, 1)
    assert steps(root) == [1, 2]


@pytest.mark.parametrize(("keep", "left"), [(1, [120, 200]), (2, [100, 120, 200])])
def test_a_damaged_one_of_a_later_step_pushes_no_good_one_out(
    write: Callable[..., Path], root: Path, keep: int, left: list[int]
) -> None:
    """Resume passes over it, since it hashes; sizes alone would make it the newest."""
    for step in (50, 100, 200):
        write(step)
    weights = root / "step-00000200" / "weights-00000-of-00001.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    resumed, _ = newest_intact(root)
    assert resumed is not None
    assert resumed.manifest.step == 100

    write(120)
    retain(root, keep)

    assert steps(root) == left
    newest, _ = newest_intact(root)
    assert newest is not None
    assert newest.manifest.step == 120
    assert (root / "latest").read_text() == "step-00000120\n"


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"step-two\n"])
def test_without_a_hint_at_the_latest_the_highest_steps_stay(
    write: Callable[..., Path], root: Path, content: bytes | None
) -> None:
    for step in (1, 2, 3):
        write(step)
    latest = root / "latest"
    latest.unlink() if content is None else latest.write_bytes(content)
    retain(root, 1)
    assert steps(root) == [3]


def test_what_the_system_does_not_delete_is_told_once_and_tried_again(
    write: Callable[..., Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, a reader keeps a file, and with it its folder."""
    said: list[str] = []
    retention = RetentionHook(root, CheckpointSettings(keep=1), say=said.append)
    with monkeypatch.context() as reader:
        reader.setattr(folders.shutil, "rmtree", lambda path, **options: None)
        for step in (1, 2, 3):
            write(step)
            retention.on_checkpoint(step)
    assert steps(root) == [3]
    (told,) = said
    assert told.startswith(f"1 removed checkpoint not deleted yet: {root}/.removing-*")
    assert half_removed(root).startswith("2 removed checkpoints not deleted yet")
    write(4)
    assert half_removed(root) == ""


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_a_kill_leaves_a_checkpoint_with_its_moments_or_without(
    write: Callable[..., Path], root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def kill(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    older, newer = write(1), write(2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, kill)
        with pytest.raises(KeyboardInterrupt):
            drop_moments(root, 1)
    assert open_checkpoint(older).manifest.has_moments == (call == "replace")
    drop_moments(root, 1, in_use={1})
    assert open_checkpoint(older).manifest.has_moments == (call == "replace")
    drop_moments(root, 1)
    assert not open_checkpoint(older).manifest.has_moments
    assert {path.name.split("-")[0] for path in older.iterdir()} == {"manifest.json", "tokenizer", "weights"}
    assert open_checkpoint(newer).manifest.has_moments
