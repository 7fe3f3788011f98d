"""Fine-tuning workers that are killed, together with their parent, in the middle of writing a result.

python -m tests.support.grid_killer GRID.toml      runs the grid with such workers
"""

import os
import signal
import sys
from pathlib import Path

from toolkit.core.files import atomic_write
from toolkit.experiments.grid import executors, program
from toolkit.experiments.grid.worker import CellRunner
from toolkit.finetuning import cell

_LAST_RESULT = 5


class KilledWhileWriting(CellRunner):
    """Leaves half of its fifth result behind."""

    def __init__(self) -> None:
        super().__init__()
        self._num_results = 0
        vars(cell)["atomic_write"] = self._write_or_die

    def _write_or_die(self, path: Path, content: str) -> None:
        self._num_results += path.name == "result.json"
        if self._num_results < _LAST_RESULT:
            atomic_write(path, content)
            return
        path.with_name(f".{path.name}.0a1b2c3d.partial").write_text(content[: len(content) // 2])
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    vars(executors)["RUNNER"] = "tests.support.grid_killer:KilledWhileWriting"
    program.run_grid(Path(sys.argv[1]), num_workers=2)
