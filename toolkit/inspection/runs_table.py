"""`toolkit inspect` of a folder of runs: one table of all runs below it, from files on disk.

A run in progress holds the lock of its folder. Any other run has finished, was stopped (which saves), or has failed:
then its metrics extend past its newest checkpoint. One that failed before its first line counts as not started.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.core.console import columns, console
from toolkit.core.errors import SettingsError
from toolkit.core.text import duration
from toolkit.run.folder import RunFolder
from toolkit.run.load import read_without_objectives
from toolkit.run.metrics import last_trained_line, positions_per_second
from toolkit.run.step_plan import StepPlan

if TYPE_CHECKING:
    from rich.table import Table

_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_TABLES = 30.0


@dataclass(frozen=True)
class RunRow:
    """State of one run."""

    name: str
    """Path of its folder, relative to the one that is shown."""
    state: str
    step: int = 0
    total_steps: int | None = None
    """None if its run.toml cannot be read."""
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    """None unless the run is training."""
    seconds_since_line: float | None = None
    """Age of its newest line in metrics.jsonl."""

    def cells(self) -> tuple[str, ...]:
        """The run's row of the table."""
        share = "" if not self.total_steps else f" of {self.total_steps:,} ({self.step / self.total_steps:.0%})"
        return (
            self.name,
            f"{self.step:,}{share}",
            self.state,
            "-" if self.loss is None else f"{self.loss:.4f}",
            "-" if self.tokens_per_second is None else f"{self.tokens_per_second:,.0f}",
            "-" if self.seconds_left is None else duration(self.seconds_left),
            "-" if self.seconds_since_line is None else f"{duration(self.seconds_since_line)} ago",
        )


def watch_runs(root: Path) -> None:
    """Show the table until Ctrl-C: updated in place on a terminal, printed repeatedly elsewhere."""
    screen = console()
    if not screen.is_terminal:
        while True:
            screen.print(runs_table(root))
            time.sleep(_SECONDS_BETWEEN_TABLES)
    from rich.live import Live

    with Live(runs_table(root), console=screen, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            live.update(runs_table(root), refresh=True)


def runs_table(root: Path) -> "Table":
    """Table of the runs below a folder, one row each, sorted by path."""
    folders = sorted(find_runs(root), key=lambda folder: folder.path)
    rows = [_row(folder, str(folder.path.relative_to(root))) for folder in folders]
    counts = ", ".join(f"{number} {state}" for state, number in Counter(row.state for row in rows).items())
    table = columns(
        f"Runs below {root}: {counts}", "run", "step", "state", "loss", "tokens/s", "time left", "newest line"
    )
    for row in rows:
        table.add_row(*row.cells())
    return table


def find_runs(root: Path) -> Iterator[RunFolder]:
    """Run folders below a folder, and links to run folders. Inside a run, only further runs are looked for."""
    for path, folders, files in os.walk(root):
        folder = RunFolder(Path(path))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if folder.settings_file.name in files and folder.path != root:
            own = {folder.checkpoints.name, folder.tensorboard.name, folder.tokenizer.name}
            folders[:] = [name for name in folders if name not in own]
            yield folder
        linked = (RunFolder(folder.path / name) for name in folders if (folder.path / name).is_symlink())
        yield from (link for link in linked if link.settings_file.is_file())


def _row(folder: RunFolder, name: str) -> RunRow:
    is_in_use = folder.is_in_use
    try:
        line, saved = last_trained_line(folder), folder.newest_step()
    except OSError as error:
        # The error of a read that fails after opening, as on NFS, names no file.
        what = Path(error.filename).name if error.filename else folder.metrics_file.name
        return RunRow(name, f"{what} cannot be read")
    reached = 0 if line is None else int(line["step"])
    try:
        plan = _plan(folder.settings_file, folder.settings_file.stat().st_mtime_ns)
    except (SettingsError, OSError):
        return RunRow(name, "run.toml cannot be read", max(reached, saved))
    schedule = plan.schedule
    step = max(reached, saved, plan.first_step)
    state = _state(step, saved, plan.first_step, schedule.total_steps, is_in_use=is_in_use)
    if line is None:
        return RunRow(name, state, step, schedule.total_steps)
    try:
        age = max(time.time() - folder.metrics_file.stat().st_mtime, 0.0)
    except OSError:
        age = None
    speed = positions_per_second(plan, line) if state == "training" else None
    left = speed and (plan.positions(schedule.total_steps) - plan.positions(line["step"])) / speed
    return RunRow(name, state, step, schedule.total_steps, line["loss"], line.get("tokens_per_second"), left, age)


def _state(step: int, saved: int, first: int, total: int, *, is_in_use: bool) -> str:
    if saved == total:
        return "finished"
    if is_in_use:
        return "training"
    if step == first:
        return "not started"
    return "stopped" if step == saved else "failed"


@lru_cache(maxsize=4096)
def _plan(settings_file: Path, modified: int) -> StepPlan:
    """The plan of a run file, cached by its modification time: a watched table asks every two seconds."""
    return StepPlan(read_without_objectives(settings_file))
