"""A changed byte in any file is found and named, and the newest intact checkpoint is used instead."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.checkpoint.read import newest_intact, open_checkpoint
from toolkit.core.errors import CheckpointError

FILES = [
    "exp_avg-00000-of-00002.safetensors",
    "exp_avg_sq-00001-of-00002.safetensors",
    "manifest.json",
    "tokenizer/more/notes.txt",
    "tokenizer/tokenizer.json",
    "weights-00000-of-00002.safetensors",
]


@pytest.mark.parametrize("name", FILES)
def test_every_single_changed_byte_is_found_and_its_file_named(write: Callable[..., Path], name: str) -> None:
    folder = write(2, num_parts=2)
    path = folder / name
    whole = path.read_bytes()
    # In the manifest, which is long, every third byte: a byte has no way to be special there.
    for place in range(0, len(whole), 3 if name == "manifest.json" else 1):
        for bit in (1, 0x20):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with pytest.raises(CheckpointError) as caught:
                open_checkpoint(folder)
            assert str(path) in str(caught.value)
    path.write_bytes(whole)
    open_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_cut_grown_and_missing_files_are_named(write: Callable[..., Path], name: str) -> None:
    folder = write(2, num_parts=2)
    path = folder / name
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1], whole + b"\n"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            open_checkpoint(folder)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert str(path) in str(caught.value) or "holds no checkpoint" in str(caught.value)


def test_newest_intact_passes_over_damage_and_says_which_file(
    write: Callable[..., Path], root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, lacking, damaged = write(1), write(2), write(3)
    (lacking / "manifest.json").unlink()
    weights = damaged / "weights-00000-of-00001.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    newest, skipped = newest_intact(root)

    assert newest is not None
    assert newest.path == good
    assert [message.split(": ")[0] for message in skipped] == ["skipping step-00000003", "skipping step-00000002"]
    assert f"{weights} is damaged: expected SHA-256 " in skipped[0]
    assert f"{lacking / 'manifest.json'} cannot be read: No such file or directory." in skipped[1]
    assert open_checkpoint(root.parent).path == good
    assert f"{weights} is damaged" in caplog.text


def test_when_none_is_intact_every_problem_is_told(write: Callable[..., Path], root: Path) -> None:
    for step in (1, 2):
        (write(step) / "tokenizer" / "tokenizer.json").write_text('{"model": []}')
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(root)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{root} holds no intact checkpoint."
    assert "step-00000002/tokenizer/tokenizer.json is damaged" in lines[1]
    assert "step-00000001/tokenizer/tokenizer.json is damaged" in lines[2]


def test_hidden_folders_and_strangers_are_no_checkpoints(write: Callable[..., Path], root: Path) -> None:
    newest = write(5)
    shutil.copytree(newest, root / ".writing-step-00000009-abc")
    shutil.copytree(newest, root / "step-00000009.bak")
    (root / "step-00000008").write_text("a file")
    assert newest_intact(root)[0].path == newest  # type: ignore[union-attr]


def test_mutated_manifests_raise_our_error_and_nothing_else(write: Callable[..., Path]) -> None:
    folder = write(1)
    path = folder / "manifest.json"
    whole = path.read_bytes()
    dice = random.Random(7)
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            start = dice.randrange(len(content))
            kind = dice.randrange(4)
            if kind == 0:
                content[start] = dice.randrange(256)
            elif kind == 1:
                del content[start : start + dice.randint(1, 200)]
            elif kind == 2:
                content[start:start] = whole[: dice.randint(1, 60)]
            else:
                content = content[: start + 1]
        if bytes(content) == whole:
            continue
        path.write_bytes(bytes(content))
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            open_checkpoint(folder)


def test_a_manifest_of_brackets_is_damage(write: Callable[..., Path]) -> None:
    folder = write(2)
    (folder / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it is not JSON\. Copy"):
        open_checkpoint(folder)
