"""Workers for a grid's cells: how many, with how many threads or which GPU, and where their output goes."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from toolkit.core.console import console
from toolkit.core.text import counted
from toolkit.experiments import Cluster, Executor, ExecutorKind, LocalExecutor, RayExecutor
from toolkit.workflows.grid_plan import GridPlan
from toolkit.workflows.grid_sharing import logs_folder

WORK = "toolkit.workflows.grid_worker:CellRunner"
"""What each worker runs, as `LocalExecutor` takes it."""


@contextmanager
def open_executor(kind: ExecutorKind, plan: GridPlan, num_missing: int, num_workers: int | None) -> Iterator[Executor]:
    """Workers that end with the block.

    Args:
        kind: where they run.
        plan: of the grid.
        num_missing: cells that are to be run.
        num_workers: at most; None: as many as there is room for.

    Raises:
        SettingsError: there is no cluster, or it has no room.
    """
    if kind is ExecutorKind.LOCAL:
        with closing(_local(plan, num_missing, num_workers)) as executor:
            yield executor
        return
    with closing(Cluster()) as cluster, closing(_ray(cluster, plan, num_missing, num_workers)) as actors:
        yield actors


def _local(plan: GridPlan, num_missing: int, num_workers: int | None) -> LocalExecutor:
    plan.choose_precisions()
    num_cores, gpus = len(os.sched_getaffinity(0)), _gpus()
    needed = max(plan.thread_counts, default=1)
    chosen = min(num_workers or len(gpus) or max(1, num_cores // needed), num_missing)
    if gpus:
        environments = [{"CUDA_VISIBLE_DEVICES": gpus[worker % len(gpus)]} for worker in range(chosen)]
        console().print(f"{counted(chosen, 'worker')} on {counted(min(chosen, len(gpus)), 'GPU')}")
    else:
        # Threads that wait for one another's share of a sum would keep a core busy that another worker needs.
        crowded = chosen * needed > num_cores and "OMP_WAIT_POLICY" not in os.environ
        environments = [{"OMP_WAIT_POLICY": "PASSIVE"} if crowded else {}] * chosen
        console().print(f"{counted(chosen, 'worker')} of {counted(needed, 'thread')} on {counted(num_cores, 'core')}")
    return LocalExecutor(WORK, environments=environments, logs=logs_folder(plan))


def _ray(cluster: Cluster, plan: GridPlan, num_missing: int, num_workers: int | None) -> RayExecutor:
    plan.choose_precisions()
    needed, gpus = max(plan.thread_counts, default=1), min(1, cluster.num_gpus)
    most = min(num_workers or num_missing, num_missing)
    at_once = min(cluster.room(cpus=needed, gpus=gpus), most)
    console().print(
        f"{cluster.name}, {counted(len(cluster.nodes()), 'machine')}: "
        f"{counted(at_once, 'worker')} of {counted(needed, 'thread')}{', each with a GPU' if gpus else ''}"
    )
    return RayExecutor(cluster, WORK, most=most, cpus=needed, gpus=gpus, logs=logs_folder(plan))


def _gpus() -> list[str]:
    """Names of the GPUs, as CUDA_VISIBLE_DEVICES lists them."""
    if not torch.cuda.is_available():
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",") if listed else [str(number) for number in range(torch.cuda.device_count())]
