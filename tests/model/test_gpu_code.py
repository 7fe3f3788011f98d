"""The code that is generated for a GPU, held against a table: graphs, kernels, loads and stores.

It has a section for the oldest torch allowed and one for the newest. A deliberate change rewrites both in the same
commit, each by its torch, and says why:

    python -m tests.model.test_gpu_code [FOLDER FOR THE SOURCES]
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_TABLE = Path(__file__).with_name("gpu_code.txt")
# torch generates the same code without triton; with it, it would ask for the driver of a GPU.
_SCRIPT = "import sys; sys.modules['triton'] = None; from tests.support.gpu_code import main; main()"


_VERSION = ".".join(torch.__version__.split(".")[:2])


def _sections() -> dict[str, list[str]]:
    """The table's lines, by version of torch."""
    sections: dict[str, list[str]] = {}
    for line in _TABLE.read_text().splitlines():
        if line.startswith("torch "):
            sections[line.removeprefix("torch ")] = []
        else:
            sections[list(sections)[-1]].append(line)
    return sections


def _generate(*arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_of_a_gpu_are_those_of_the_table() -> None:
    """Of blocks: one graph each way, and no copy around the attention kernel. Of the loss: one read, then one more."""
    sections = _sections()
    if _VERSION not in sections:
        pytest.skip(f"the table has no torch {_VERSION}")
    assert _generate().splitlines() == sections[_VERSION]


if __name__ == "__main__":
    found = _sections() | {_VERSION: _generate(*sys.argv[1:]).splitlines()}
    _TABLE.write_text(
        "".join(f"torch {name}\n" + "".join(f"{line}\n" for line in found[name]) for name in sorted(found))
    )
