"""The code that is generated for a GPU, held against a table: graphs, kernels, loads and stores.

A deliberate change rewrites the table in the same commit and says why:

    python -m tests.model.test_gpu_code [FOLDER FOR THE SOURCES]
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TABLE = Path(__file__).with_name("gpu_code.txt")
# torch generates the same code without triton; with it, it would ask for the driver of a GPU.
_SCRIPT = "import sys; sys.modules['triton'] = None; from tests.support.gpu_code import main; main()"


def _generate(*arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_of_a_gpu_are_those_of_the_table() -> None:
    """Of blocks: one graph each way, and no copy around the attention kernel. Of the loss: one read, then one more."""
    assert _generate().splitlines() == _TABLE.read_text().splitlines()


if __name__ == "__main__":
    _TABLE.write_text(_generate(*sys.argv[1:]))
