"""Pieces of a study as jobs of Slurm, each behind the one whose checkpoint it begins from.

Slurm carries the graph. A piece looks for its checkpoint itself, and ends with code 2 where there is none.
"""

import itertools
from collections.abc import Container, Sequence
from dataclasses import replace

from toolkit.core.files import shipped_folder
from toolkit.execution.slurm import SlurmJobs
from toolkit.experiments.grid.declaration import Grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.program import submit_grid
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import PieceKey, RunPiece, StudyPlan


def submit_study(plan: StudyPlan, folder: StudyFolder, grid: Grid | None) -> None:
    """Submit all pieces that are not in the queue, and the study's grid behind the ends of all models; print where each
    job is. Where a model fails, Slurm removes the grid's job, as it does what waits for that model's checkpoints.
    """
    machine, jobs = plan.study.machine, SlurmJobs(folder.jobs_file)
    script = str(shipped_folder("launchers") / "slurm.sbatch")
    threads = [f"--export=ALL,OMP_NUM_THREADS={machine.threads}"] if machine.threads else []
    for piece in joined(plan.pieces, shortest=plan.study.slurm.shortest_steps, queued=jobs.live):
        needed = jobs.live.get(_text(piece.needs)) if piece.needs else None
        jobs.keep(
            _text(piece.key),
            [
                *(script, str(plan.folder(piece.name).settings_file), "--until", str(piece.until)),
                *(["--ds_config", machine.ds_config] if machine.ds_config else []),
            ],
            log=folder.log(*piece.key),
            options=["--nodes", str(machine.nodes), *threads, *plan.study.job_options],
            behind=[needed] if needed else [],
        )
    jobs.print_counts()
    if grid is not None:
        ends = {piece.name: jobs.live[_text(piece.key)] for piece in plan.pieces if _text(piece.key) in jobs.live}
        if jobs.num_submitted:
            # A job of the grid that is in the queue waits for others than these.
            GridFolder(grid.grid.dir).jobs_file.unlink(missing_ok=True)
        submit_grid(grid, behind=ends.values())


def joined(pieces: Sequence[RunPiece], *, shortest: int, queued: Container[str] = ()) -> list[RunPiece]:
    """Pieces of at least so many steps: shorter ones are part of the one behind them, as a cut is a wait in the queue.
    A job that is in the queue stays a piece, however much of it is done.

    What waits for one of these waits for the other; it begins from the same checkpoint, which stays.
    """
    found, instead = list[RunPiece](), dict[PieceKey, PieceKey]()
    for name, chain in itertools.groupby(pieces, key=lambda piece: piece.name):
        links, joined_up = list(chain), list[RunPiece]()
        for piece in links:
            joined_up.append(piece)
            is_long = piece.until - joined_up[0].first >= shortest
            if piece is links[-1] or is_long or _text(piece.key) in queued:
                found.append(RunPiece(name, piece.until, joined_up[0].first, joined_up[0].needs))
                instead |= {part.key: piece.key for part in joined_up}
                joined_up = []
    return [replace(piece, needs=instead.get(piece.needs) if piece.needs else None) for piece in found]


def _text(key: PieceKey) -> str:
    return f"{key[0]}@{key[1]}"
