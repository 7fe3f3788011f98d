"""Grids of fine-tuning runs: declaration, cells, choice of learning rates, and reports."""

from toolkit.experiments.grid.cell_folder import CellFolder, differences
from toolkit.experiments.grid.cells import Cell, Diverged, Outcome, Score, grid_cells, results_text
from toolkit.experiments.grid.declaration import Grid, GridSettings, ModelEntry, TaskEntry, load_grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.halving import Dropped, Halving, halve
from toolkit.experiments.grid.selection import select

__all__ = [
    "Cell",
    "CellFolder",
    "Diverged",
    "Dropped",
    "Grid",
    "GridFolder",
    "GridSettings",
    "Halving",
    "ModelEntry",
    "Outcome",
    "Score",
    "TaskEntry",
    "differences",
    "grid_cells",
    "halve",
    "load_grid",
    "results_text",
    "select",
]
