"""Workers for a grid's cells: how many, with how many threads or which GPU, and where their output goes."""

import os
import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

from toolkit.core.console import console
from toolkit.core.text import counted
from toolkit.engine import gpus
from toolkit.execution.local import LocalExecutor
from toolkit.execution.ray_actors import RayExecutor
from toolkit.execution.ray_cluster import Cluster
from toolkit.execution.slurm import SlurmJobs, SlurmSettings
from toolkit.execution.work import Executor, ExecutorKind, Resources, Work
from toolkit.experiments.grid.folder import GridFolder

RUNNER = "toolkit.experiments.grid.worker:CellRunner"
"""Name of what runs cells, as `LocalExecutor` takes it."""


def open_executor(
    kind: ExecutorKind, items: Sequence[Work], *, num_workers: int | None, logs: Path
) -> AbstractContextManager[Executor]:
    """Workers for these items, as many as there is room for if no number is given; they end with the block."""
    is_here = kind is ExecutorKind.LOCAL
    return closing(_local(items, num_workers, logs) if is_here else _ray(Cluster(), items, num_workers, logs))


def _local(items: Sequence[Work], num_workers: int | None, logs: Path) -> LocalExecutor:
    num_cores, visible = len(os.sched_getaffinity(0)), gpus.visible_gpus()
    needed = max(item.resources.cpus for item in items)
    chosen = min(num_workers or len(visible) or max(1, num_cores // needed), len(items))
    if visible:
        environments = [{gpus.VISIBLE_DEVICES: visible[worker % len(visible)]} for worker in range(chosen)]
        console().print(f"{counted(chosen, 'worker')} on {counted(min(chosen, len(visible)), 'GPU')}")
    else:
        environments = [{}] * chosen
        console().print(f"{counted(chosen, 'worker')} of {counted(needed, 'thread')} on {counted(num_cores, 'core')}")
    return LocalExecutor(RUNNER, environments=environments, logs=logs)


def _ray(cluster: Cluster, items: Sequence[Work], num_workers: int | None, logs: Path) -> RayExecutor:
    num_gpus = 0 if gpus.is_cpu_wanted() else min(1, cluster.num_gpus)
    resources = Resources(max(item.resources.cpus for item in items), gpus=num_gpus)
    most = min(num_workers or len(items), len(items))
    at_once, each = min(cluster.room(resources), most), ", each with a GPU" if resources.gpus else ""
    console().print(
        f"{cluster.name}, {counted(len(cluster.nodes()), 'machine')}: "
        f"{counted(at_once, 'worker')} of {counted(resources.cpus, 'thread')}{each}"
    )
    return RayExecutor(
        cluster,
        RUNNER,
        most=most,
        resources=resources,
        logs=logs,
        shared="grid.dir, data, models and the working directory",
        cpus_setting="grid.threads",
    )


def submit_commands(folder: GridFolder, settings: SlurmSettings, *, most: int, behind: Collection[str] = ()) -> None:
    """Submit jobs to Slurm, each a command that runs what is declared in the folder, until so many are in the queue."""
    jobs = SlurmJobs(folder.jobs_file)
    command = shlex.join([sys.executable, "-m", "toolkit.cli", "grid", "--", str(folder.declaration_file)])
    jobs.keep_equal(command, folder.path, folder.path.name, most=most, options=settings.options, behind=behind)
