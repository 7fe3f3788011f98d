"""Kills runs at random moments: `python -m tests.proofs.kills [--kills 20] [--seed 0]`.

A run under tensor parallelism, and one in two pipeline stages, are started by `toolkit train`, killed with all their
ranks (SIGKILL) a random time later, and started again. One that gets to its end is compared with a run that nobody
killed, and begun anew, until each layout was killed so often; the last one may finish. Losses, digests, weights and
moments have to be equal bit for bit. Every step is saved, in the background: a kill may cost the checkpoint that is
being written, and no other.
"""

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.resume.test_resume import compare
from tests.support.layouts import Layout
from tests.support.runs import read_metrics, write_run
from toolkit.checkpoint.folders import WRITING_PREFIX, step_folders

LAYOUTS = (Layout("zero1", 2, tp=2), Layout("pipeline", 2, pp=2))
_KILLED_EARLY = 0.3
"""Share of the kills at a random moment of the start; the others come up to three seconds after the first step."""
# In the first phase steps of 2, 4, 6 and then 8 rows of 64, in the second a mask ratio that rises.
_RISING = (
    *("schedule.0.batch_warmup_rows=2", "schedule.0.batch_warmup_tokens=3000"),
    "objectives.mlm.mask_ratio={start=0.2,stop=0.6}",
)
_LONG = ("schedule.0.steps=30", "schedule.1.steps=30", "checkpoint.every=1", "checkpoint.keep=3", *_RISING)


@dataclass(frozen=True)
class Killed:
    """How a run was killed, and what came of it."""

    layout: Layout
    steps: list[int]
    """The last step in metrics.jsonl at each kill; 0 before the first."""
    num_saving: int
    """Kills while a checkpoint was being written."""
    differences: list[str]
    """From the run that nobody killed, and checkpoints that should have been there."""


def kill_at_random(folder: Path, layout: Layout, *, kills: int, seed: int) -> Killed:
    """Kill runs of a layout so often, let the last one finish, and compare each with one that was left alone."""
    run_file, draws = write_run(folder), random.Random(seed)
    whole, again = folder / "whole", folder / "again"
    _train(run_file, whole, layout).wait()
    steps, num_saving, differences = list[int](), 0, list[str]()
    while len(steps) < kills:
        process = _train(run_file, again, layout)
        before, is_early = _last_step(again), draws.random() < _KILLED_EARLY
        while process.poll() is None and not is_early and _last_step(again) == before:
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=draws.uniform(0, 12 if is_early else 3))
        if process.poll() is None:
            _kill(process)
            steps.append(_last_step(again))
            num_saving += any((again / "checkpoints").glob(f"{WRITING_PREFIX}*"))
            differences += _missing(again)
            print(f"{layout}: killed at step {steps[-1]}", flush=True)
        else:
            differences += compare(whole, again)
            shutil.rmtree(again)
    _train(run_file, again, layout).wait()
    return Killed(layout, steps, num_saving, differences + compare(whole, again))


def _missing(run_folder: Path) -> list[str]:
    """What a kill cost besides the checkpoint in flight: the one before that appeared before this step began."""
    newest, last = next((step for step, _ in step_folders(run_folder / "checkpoints")), 0), _last_step(run_folder)
    return [f"killed at step {last}, the newest checkpoint is of step {newest}"] if newest < last - 2 else []


def _last_step(run_folder: Path) -> int:
    lines = read_metrics(run_folder)
    return lines[-1]["step"] if lines else 0


def _train(run_file: Path, folder: Path, layout: Layout) -> "subprocess.Popen[bytes]":
    settings = (*_LONG, *layout.overrides, "train.micro_batch_rows=2", f"run.dir={folder}")
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "toolkit.cli", "train", str(run_file), "--ds-config", layout.ds_config]
    command += ["--num-procs", str(layout.ranks), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End `toolkit train`, the launcher and every rank, none of which gets to do anything."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family)
    process.wait()


def main() -> int:
    """Kill, print, and leave with 1 where a run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    is_good = True
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            killed = kill_at_random(Path(folder), layout, kills=options.kills, seed=options.seed)
        times = f"{len(killed.steps)} times ({killed.num_saving} while saving)"
        print(f"{layout}: killed {times}, at steps {killed.steps}: {killed.differences or 'equal'}")
        is_good = is_good and not killed.differences
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
