from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.checkpoint import newest_intact, retain
from toolkit.core.errors import CheckpointError


def steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in root.glob("step-*"))


def test_the_newest_and_the_trunk_stay(write: Callable[..., Path], root: Path) -> None:
    for step in range(10, 80, 10):
        write(step)

    removed = retain(root, 2, keep_every=30)

    assert [path.name for path in removed] == ["step-00000050", "step-00000040", "step-00000020", "step-00000010"]
    assert steps(root) == [30, 60, 70]
    assert retain(root, 2, keep_every=30) == []
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-00000030", "step-00000060", "step-00000070"]


def test_without_a_trunk_only_the_newest_stay(write: Callable[..., Path], root: Path) -> None:
    for step in (1, 2, 3):
        write(step)
    retain(root, 1, keep_every=None)
    assert steps(root) == [3]


def test_one_that_lacks_a_file_pushes_no_good_one_out(write: Callable[..., Path], root: Path) -> None:
    for step in (1, 2, 3):
        write(step)
    (root / "step-00000003" / "exp_avg-00000-of-00001.safetensors").unlink()

    retain(root, 1, keep_every=None)

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
    with pytest.raises(CheckpointError, match=r"step-00000001 is older than .* cannot be removed: Permission denied"):
        retain(root, 1, keep_every=None)
    assert steps(root) == [1, 2]
