"""Grids of fine-tuning runs: declaration, cells, choice of learning rates, workers that run them, and reports."""

from toolkit.experiments.executors.local import LocalExecutor
from toolkit.experiments.executors.ray_actors import RayExecutor
from toolkit.experiments.executors.ray_cluster import Cluster
from toolkit.experiments.grid.cell_folder import CellFolder, differences
from toolkit.experiments.grid.cells import Cell, Diverged, Outcome, Score, grid_cells, results_text
from toolkit.experiments.grid.declaration import Grid, GridSettings, ModelEntry, TaskEntry, load_grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.halving import Dropped, Halving, halve
from toolkit.experiments.grid.selection import select
from toolkit.experiments.scheduling import Executor, ExecutorKind, Job, run_cells

__all__ = [
    "Cell",
    "CellFolder",
    "Cluster",
    "Diverged",
    "Dropped",
    "Executor",
    "ExecutorKind",
    "Grid",
    "GridFolder",
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
