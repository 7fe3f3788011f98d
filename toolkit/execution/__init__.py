"""Work for workers, whatever it is: items with keys, who runs which next, workers, and records of what is done."""

from toolkit.execution.local import LocalExecutor
from toolkit.execution.ray_actors import RayExecutor
from toolkit.execution.ray_cluster import Cluster
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import (
    NOBODY,
    Event,
    Executor,
    ExecutorKind,
    Failed,
    Finished,
    Key,
    Lost,
    Observer,
    Resources,
    Share,
    Work,
)

__all__ = [
    "NOBODY",
    "Cluster",
    "Event",
    "Executor",
    "ExecutorKind",
    "Failed",
    "Finished",
    "Key",
    "LocalExecutor",
    "Lost",
    "Observer",
    "RayExecutor",
    "Resources",
    "Share",
    "Work",
    "run_work",
]
