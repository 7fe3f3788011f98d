"""A writer that dies at any moment leaves every older checkpoint and no half one.

Two ways to die: `kill -9` at random moments, and a stop just before each single system call that matters, one after
the other, which is slower to think of but leaves no moment out.
"""

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import states_of, write_checkpoint
from toolkit.checkpoint import durable
from toolkit.checkpoint.read import open_checkpoint
from toolkit.checkpoint.retention import retain

SIZES = ((200, 100), (50_000,), (3,))
fork = multiprocessing.get_context("fork")


def visible(root: Path) -> dict[int, Path]:
    return {int(path.name.removeprefix("step-")): path for path in root.glob("step-*")}


def assert_whole(root: Path) -> None:
    """Every visible checkpoint verifies, and holds the numbers of its own step."""
    for step, folder in visible(root).items():
        checkpoint = open_checkpoint(folder)
        assert checkpoint.manifest.step == step
        for state in states_of(step, SIZES if len(checkpoint.names) == len(SIZES) else SIZES[:1]):
            found = checkpoint.parameter(state.name)
            assert torch.equal(found.weight, state.weight)
            assert torch.equal(found.exp_avg_sq, state.exp_avg_sq)
    assert not list(root.glob("step-*/.*"))


def keep_writing(root: Path, tokenizer_folder: Path, first: int, acknowledged: Path, begun: Event) -> None:
    torch.set_num_threads(1)
    begun.set()
    for step in itertools.count(first):
        write_checkpoint(root, step, states=states_of(step, SIZES), tokenizer_folder=tokenizer_folder, num_parts=2)
        with acknowledged.open("a") as file:
            file.write(f"{step}\n")
        retain(root, 2, is_kept=lambda step: step % 5 == 0)


def kill_writers(root: Path, tokenizer_folder: Path, *, times: int, seed: int) -> int:
    """Start and kill writers; returns how many died while a checkpoint was being written."""
    dice = random.Random(seed)
    acknowledged = root.parent / "acknowledged"
    root.mkdir(parents=True)
    acknowledged.write_text("0\n")
    num_interrupted = 0
    for _ in range(times):
        first = max(visible(root), default=0) + 1
        begun = fork.Event()
        writer = fork.Process(target=keep_writing, args=(root, tokenizer_folder, first, acknowledged, begun))
        writer.start()
        assert begun.wait(60)
        time.sleep(dice.uniform(0.005, 0.12))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        num_interrupted += any(root.glob(".writing-*"))
        done = [int(line) for line in acknowledged.read_text().split()]
        trunk = {step for step in done if step and step % 5 == 0}
        # What was acknowledged is there: the newest, one more (a writer may have died before it could acknowledge
        # that one), and the trunk for ever.
        assert trunk | {step for step in done[-1:] if step} <= visible(root).keys()
        assert len(visible(root)) >= min(2, len(done) - 1)
        assert_whole(root)
    return num_interrupted


def test_kill_at_random_moments(root: Path, tokenizer_folder: Path) -> None:
    assert kill_writers(root, tokenizer_folder, times=25, seed=1) >= 5


@pytest.mark.slow
def test_kill_at_many_random_moments(root: Path, tokenizer_folder: Path) -> None:
    assert kill_writers(root, tokenizer_folder, times=150, seed=2) >= 30


def write_until_call(number: int, root: Path, tokenizer_folder: Path) -> None:
    """In a child: write step 3 and thin out, but die just before the given call. Exit code 7 says it died there."""
    counter = itertools.count()

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if next(counter) == number:
                os._exit(7)
            return function(*arguments, **named)

        return call

    torch.set_num_threads(1)
    for owner, names in (
        (os, ("fsync", "write", "rename", "replace", "mkdir", "rmdir", "unlink", "open")),
        (Path, ("open", "rename", "replace", "mkdir", "unlink")),
        (shutil, ("rmtree", "copymode")),
        (durable, ("_write_whole",)),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))
    write_checkpoint(root, 3, states=states_of(3, SIZES[:1]), tokenizer_folder=tokenizer_folder)
    retain(root, 1)
    os._exit(0)


@pytest.mark.parametrize("damaged_before", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stop_before_every_call(
    root: Path, tokenizer_folder: Path, tmp_path: Path, write: Callable[..., Path], damaged_before: bool
) -> None:
    write(2, states=states_of(2, SIZES[:1]))
    if damaged_before:
        # A damaged checkpoint of the same step stands in the way and is to be replaced.
        (write(3, states=states_of(3, SIZES[:1])) / "tokenizer" / "tokenizer.json").write_text("{}")
    start = tmp_path / "start"
    shutil.copytree(root, start)
    codes = []
    for number in range(500):
        shutil.rmtree(root)
        shutil.copytree(start, root)
        writer = fork.Process(target=write_until_call, args=(number, root, tokenizer_folder))
        writer.start()
        writer.join()
        codes.append(writer.exitcode)
        if (
            damaged_before
            and 3 in visible(root)
            and (root / "step-00000003/tokenizer/tokenizer.json").stat().st_size == 2
        ):
            shutil.rmtree(root / "step-00000003")
        assert_whole(root)
        assert visible(root).keys() in ({2}, {2, 3}, {3})
        if writer.exitcode == 0:
            break
        if number % 8:
            continue
        # The next writer is not disturbed by what was left, and clears it away.
        write_checkpoint(root, 4, states=states_of(4, SIZES[:1]), tokenizer_folder=tokenizer_folder)
        assert sorted(path.name for path in root.iterdir() if path.name.startswith(".")) == []
        assert open_checkpoint(root).manifest.step == 4
    assert codes[-1] == 0
    assert set(codes[:-1]) == {7}
    assert len(codes) > 30
    assert visible(root).keys() == {3}
