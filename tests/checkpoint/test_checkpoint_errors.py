"""A disk that is full or read-only: one clear message, nothing left behind, older checkpoints untouched."""

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import states_of, write_checkpoint
from toolkit.checkpoint import durable
from toolkit.checkpoint.read import ParameterState, open_checkpoint
from toolkit.checkpoint.write import abandon, begin, finish, write_part
from toolkit.core.errors import CheckpointError


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def test_a_full_disk_at_any_block_leaves_nothing_and_says_so(
    write: Callable[..., Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = write(1)
    original = durable._write_whole
    reached_the_end = False
    for allowed in range(40):
        left = allowed

        def fill(handle: int, block: memoryview) -> None:
            nonlocal left
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left -= 1
            original(handle, block)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write_whole", fill)
            try:
                write(2)
            except CheckpointError as error:
                text = str(error)
            else:
                reached_the_end = True
                break
        assert text.startswith(f"could not write the checkpoint to {root}: No space left on device; ")
        assert "GB are free. Free space there, or set run.dir to another place." in text
        assert hidden(root) == []
        open_checkpoint(older)
    assert reached_the_end
    assert allowed > 10


def test_a_file_that_the_system_refuses_to_let_grow(root: Path, tokenizer_folder: Path) -> None:
    """The system's own limit on file sizes stands in for a full disk, without a double."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"could not write the checkpoint .*: File too large.* Free space"):
            write_checkpoint(root, 1, states=states_of(1, ((1 << 15,),)), tokenizer_folder=tokenizer_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"Permission denied .*\. Make that folder writable, or set run\.dir"):
            begin(root, 1)
    finally:
        root.chmod(0o700)


def test_a_read_only_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        CheckpointError, match=rf"could not write the checkpoint to {root}: Read-only file system .*Make that folder"
    ):
        begin(root, 1)


def test_a_file_where_the_folder_should_be(root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("in the way")
    with pytest.raises(CheckpointError, match=f"could not write the checkpoint to {root}: File exists"):
        begin(root, 1)


def test_begin_clears_what_dead_runs_left(write: Callable[..., Path], root: Path) -> None:
    older = write(1)
    dead = begin(root, 2)
    (dead / "weights-00000-of-00001.safetensors").write_bytes(b"half")
    (root / ".writing-latest-1").write_text("step")
    (root / ".removing-step-00000000-1").mkdir()

    folder = begin(root, 2)

    assert hidden(root) == [folder.name]
    assert folder != dead
    open_checkpoint(older)
    abandon(folder)
    assert hidden(root) == []


def test_a_writer_whose_folder_was_taken_cannot_finish(root: Path, tokenizer_folder: Path) -> None:
    first = begin(root, 1)
    write_part(first, part=0, num_parts=1, parameters=states_of(1))
    begin(root, 1)
    with pytest.raises(CheckpointError, match=r"its temporary folder is gone\. Check whether another process failed"):
        write_part(first, part=1, num_parts=2, parameters=states_of(1))
    assert not list(root.glob("step-*"))


def test_a_part_file_that_shrank_is_not_made_visible(root: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    manifest = open_checkpoint(write(1)).manifest
    folder = begin(root, 2)
    part = write_part(folder, part=0, num_parts=1, parameters=states_of(2))
    (folder / "exp_avg-00000-of-00001.safetensors").write_bytes(b"")
    following = manifest.model_copy(update={"step": 2, "tensors": part.tensors, "files": part.files})
    with pytest.raises(CheckpointError, match="has 0 bytes"):
        finish(folder, following, tokenizer_folder=tmp_path / "tokenizer")
    assert not (root / "step-00000002").exists()
    assert hidden(root) == []


def test_an_intact_checkpoint_of_the_same_step_stays_a_damaged_one_is_replaced(write: Callable[..., Path]) -> None:
    zeros = [ParameterState("p", *(torch.zeros(2) for _ in range(3)))]
    ones = [ParameterState("p", *(torch.ones(2) for _ in range(3)))]
    folder = write(1, states=zeros)

    write(1, states=ones)
    assert open_checkpoint(folder).weight("p").tolist() == [0, 0]

    (folder / "manifest.json").unlink()
    assert write(1, states=ones) == folder
    assert open_checkpoint(folder).weight("p").tolist() == [1, 1]
    assert hidden(folder.parent) == []
