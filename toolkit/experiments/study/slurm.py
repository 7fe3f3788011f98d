"""Pieces of a study as jobs of Slurm, each behind the one whose checkpoint it begins from.

Slurm carries the graph, and this command returns; run again, it says what became of the jobs, and submits what is
neither on disk nor in the queue. A dependency is no proof: Slurm takes that on a job it has forgotten for fulfilled. So
a piece looks for its checkpoint itself, and ends with code 2 where there is none.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write, shipped_folder
from toolkit.core.text import counted
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import PieceKey, RunPiece, StudyPlan

_SECONDS = 60


def submit_pieces(plan: StudyPlan, folder: StudyFolder) -> None:
    """Submit all pieces that are not in the queue, and print where each one is.

    Raises:
        SettingsError: there is no Slurm, or it refuses a job; what was submitted before stays, and is not repeated.
    """
    if shutil.which("sbatch") is None:
        raise SettingsError(
            "--executor slurm needs sbatch, which is not on the path. Run it on a machine of a cluster."
        )
    screen, jobs, states = console(), _read(folder), _states()
    kept = joined(plan.pieces, shortest=plan.study.slurm.shortest_steps)
    num_submitted = 0
    for piece in kept:
        key = _text(piece.key)
        state = states.get(jobs.get(key, ""))
        if state is None:
            needed = jobs.get(_text(piece.needs)) if piece.needs else None
            waits = needed if needed in states else None
            jobs[key] = _submit(piece, plan, folder, waits_for=waits)
            states[jobs[key]] = "submitted"
            state = f"submitted{f', behind job {waits}' if waits else ''}"
            num_submitted += 1
            # After each: what is in the queue is known however this command ends.
            atomic_write(folder.jobs_file, json.dumps(jobs, indent=2) + "\n")
        screen.print(f"{key}: job {jobs[key]}, {state}")
    screen.print(f"{counted(num_submitted, 'job')} submitted, {len(kept) - num_submitted:,} in the queue")


def joined(pieces: Sequence[RunPiece], *, shortest: int) -> list[RunPiece]:
    """Pieces of at least so many steps: shorter ones are part of the one behind them, as a cut is a wait in the queue.

    What waits for one of these waits for the other; it begins from the same checkpoint, which stays.
    """
    found, instead = list[RunPiece](), dict[PieceKey, PieceKey]()
    for name, chain in itertools.groupby(pieces, key=lambda piece: piece.name):
        links, joined_up = list(chain), list[RunPiece]()
        for piece in links:
            joined_up.append(piece)
            if piece is links[-1] or piece.until - joined_up[0].first >= shortest:
                found.append(RunPiece(name, piece.until, joined_up[0].first, joined_up[0].needs))
                instead |= {part.key: piece.key for part in joined_up}
                joined_up = []
    return [replace(piece, needs=instead.get(piece.needs) if piece.needs else None) for piece in found]


def _submit(piece: RunPiece, plan: StudyPlan, folder: StudyFolder, *, waits_for: str | None) -> str:
    """Submit a piece, and return the id of its job."""
    machine, slurm = plan.study.machine, plan.study.slurm
    command = [
        *("sbatch", "--parsable", "--job-name", _text(piece.key), "--kill-on-invalid-dep=yes", "--open-mode=append"),
        *("--output", str(folder.log(*piece.key)), "--nodes", str(machine.nodes)),
        *([f"--dependency=afterok:{waits_for}"] if waits_for else []),
        *([] if machine.gpus is None else [f"--gpus-per-node={machine.gpus}"]),
        *slurm.options,
        *(str(shipped_folder("launchers") / "slurm.sbatch"), str(plan.folder(piece.name).settings_file)),
        *("--until", str(piece.until)),
        *(["--ds_config", machine.ds_config] if machine.ds_config else []),
    ]
    environment = os.environ | ({"OMP_NUM_THREADS": str(machine.threads)} if machine.threads else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=_SECONDS)
    if done.returncode:
        raise SettingsError(
            f"Slurm refuses {_text(piece.key)}: {done.stderr.strip()}\nThe command was: {' '.join(command)}\n"
            "Correct [machine] or slurm.options of the study; the same command goes on."
        )
    return done.stdout.strip().partition(";")[0]


def _states() -> dict[str, str]:
    """States of this user's jobs in the queue, by id."""
    command = ["squeue", "--me", "--noheader", "--format=%i|%T|%r"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode:
        raise SettingsError(f"Slurm does not say what is in its queue: {done.stderr.strip()}. Try again later.")
    found = dict[str, str]()
    for line in done.stdout.splitlines():
        number, state, reason = line.split("|", 2)
        found[number] = state.lower() if reason in ("None", "") else f"{state.lower()} ({reason})"
    return found


def _read(folder: StudyFolder) -> dict[str, str]:
    try:
        jobs: dict[str, str] = json.loads(folder.jobs_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return jobs


def _text(key: PieceKey) -> str:
    return f"{key[0]}@{key[1]}"
