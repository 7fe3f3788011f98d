"""Fine-tuning workers that are killed, together with their parent, in the middle of writing a result.

python -m tests.support.grid_killer GRID.toml      runs the grid with such workers
"""

import os
import signal
import sys
from pathlib import Path

from toolkit.core.files import atomic_write
from toolkit.experiments.grid import plan, program
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.workers import GridJob
from toolkit.finetuning import cell
from toolkit.work.claims import Item

_LAST_RESULT = 5


class KilledWhileWriting(GridJob):
    """Leaves half of its fifth result behind."""

    _num_results = 0

    def do(self, item: Item) -> None:
        vars(cell)["atomic_write"] = self._write_or_die
        super().do(item)

    def _write_or_die(self, path: Path, content: str) -> None:
        self._num_results += path.name == "result.json"
        if self._num_results < _LAST_RESULT:
            atomic_write(path, content)
            return
        path.with_name(f".{path.name}.0a1b2c3d.partial").write_text(content[: len(content) // 2])
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # By its own name, since workers import it.
    from tests.support import grid_killer

    vars(plan)["GridJob"] = grid_killer.KilledWhileWriting
    program.run_grid(load_grid(Path(sys.argv[1])), num_workers=2)
