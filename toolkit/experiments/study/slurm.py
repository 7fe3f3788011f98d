"""Pieces of a study as Slurm jobs, each after the one whose checkpoint it starts from.

Slurm holds the dependency graph. A piece looks for its checkpoint itself, and exits with code 2 if it is missing. Two
jobs never train one run at once: a cut within a queued job is part of it, and a new job waits for all jobs of its run.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from toolkit.core.console import console
from toolkit.core.files import shipped_folder
from toolkit.experiments.grid.declaration import Grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.program import submit_grid
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import PieceKey, RunPiece, StudyPlan
from toolkit.work.slurm import SlurmJobs


def submit_study(plan: StudyPlan, folder: StudyFolder, grid: Grid | None) -> None:
    """Submit all pieces that are not in the queue, and the study's grid after the ends of all models; print each job's
    state. If a model fails, Slurm removes the grid's job and those that wait for that model's checkpoints.
    """
    machine, jobs = plan.study.machine, folder.jobs()
    script = str(shipped_folder("launchers") / "slurm.sbatch")
    threads = [f"--export=ALL,OMP_NUM_THREADS={machine.threads}"] if machine.threads else []
    queued = _ends(jobs.live)
    # A job may have ended since the plan was made.
    left = [piece for piece in plan.pieces if plan.done(piece.name) < piece.until]
    pieces = joined(left, shortest=plan.study.slurm.shortest_steps, queued=queued)
    for piece in pieces:
        before = [PieceKey(piece.name, until) for until in queued.get(piece.name, ())]
        after = {jobs.live.get(str(key)) for key in [*before, piece.needs] if key is not None}
        jobs.keep(
            str(piece.key),
            [
                *(script, str(plan.folder(piece.name).settings_file), "--until", str(piece.until)),
                *(["--ds_config", machine.ds_config] if machine.ds_config else []),
            ],
            log=folder.log(piece.key),
            options=["--nodes", str(machine.nodes), *threads, *plan.study.job_options],
            after=sorted(number for number in after if number is not None),
        )
    jobs.print_counts()
    _tell_late_cuts(plan, jobs, queued)
    if grid is not None:
        ends = {piece.name: jobs.live[str(piece.key)] for piece in pieces}
        if jobs.num_submitted:
            # A grid job already in the queue waits for other jobs than these.
            GridFolder(grid.grid.dir).jobs_file.unlink(missing_ok=True)
        submit_grid(grid, after=ends.values())


def joined(pieces: Sequence[RunPiece], *, shortest: int, queued: Mapping[str, Sequence[int]]) -> list[RunPiece]:
    """Join pieces into jobs. `queued`: ends of queued jobs by run, ascending; a cut before one is part of that job. Any
    other piece of fewer than `shortest` steps is joined to the next one, as each cut costs a wait in the queue.

    A piece that needs a joined one waits for the whole job; it starts from the same checkpoint, which is kept.
    """
    found, instead = list[RunPiece](), dict[PieceKey, PieceKey]()
    for name, chain in itertools.groupby(pieces, key=lambda piece: piece.name):
        links, joined_up = list(chain), list[RunPiece]()
        jobs = [_end(piece, queued) for piece in links]
        for piece, job, following in zip(links, jobs, [*jobs[1:], None], strict=True):
            joined_up.append(piece)
            is_whole = piece.until - joined_up[0].first >= shortest if job is None else job != following
            if is_whole or piece is links[-1]:
                whole = RunPiece(name, job or piece.until, joined_up[0].first, joined_up[0].needs)
                found.append(whole)
                instead |= {part.key: whole.key for part in joined_up}
                joined_up = []
    return [replace(piece, needs=instead.get(piece.needs) if piece.needs else None) for piece in found]


def _tell_late_cuts(plan: StudyPlan, jobs: SlurmJobs, queued: Mapping[str, Sequence[int]]) -> None:
    """Print which running jobs do not know of a step that they should keep, and how to tell them."""
    for piece in plan.pieces:
        job = str(PieceKey(piece.name, _end(piece, queued) or 0))
        if not jobs.is_running(job) or job == str(piece.key):
            continue
        newest = plan.folder(piece.name).newest_manifest()
        if newest is None or piece.until not in newest.table("checkpoint").get("keep_at", ()):
            number = jobs.live[job]
            console().print(
                f"{job}: it has begun without the order to keep step {piece.until:,}, which others now begin from. To "
                f"let it save, and go on with that order: scancel --batch --signal=USR1 {number}"
            )


def _end(piece: RunPiece, queued: Mapping[str, Sequence[int]]) -> int | None:
    """End of the queued job that trains a piece; None if absent."""
    return next((end for end in queued.get(piece.name, ()) if end >= piece.until), None)


def _ends(live: Iterable[str]) -> dict[str, list[int]]:
    """Ends of the queued pieces by run, ascending, from their job names."""
    found = dict[str, list[int]]()
    for name, _, until in (job.rpartition("@") for job in live):
        found.setdefault(name, []).append(int(until))
    return {name: sorted(ends) for name, ends in found.items()}
