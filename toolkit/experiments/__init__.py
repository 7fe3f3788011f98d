"""Grids of fine-tuning runs: declaration, cells, choice of learning rates, workers that run them, and reports."""

from toolkit.experiments.cells import Cell, CellFolder, Diverged, Outcome, Score, differences, grid_cells
from toolkit.experiments.declaration import Grid, GridSettings, ModelEntry, TaskEntry, load_grid
from toolkit.experiments.executors.local import LocalExecutor
from toolkit.experiments.executors.ray_actors import RayExecutor
from toolkit.experiments.executors.ray_cluster import Cluster
from toolkit.experiments.halving import Dropped, Halving, halve
from toolkit.experiments.scheduling import Executor, ExecutorKind, Job, run_cells
from toolkit.experiments.selection import results_text, select

__all__ = [
    "Cell",
    "CellFolder",
    "Cluster",
    "Diverged",
    "Dropped",
    "Executor",
    "ExecutorKind",
    "Grid",
    "GridSettings",
    "Halving",
    "Job",
    "LocalExecutor",
    "ModelEntry",
    "Outcome",
    "RayExecutor",
    "Score",
    "TaskEntry",
    "differences",
    "grid_cells",
    "halve",
    "load_grid",
    "results_text",
    "run_cells",
    "select",
]
