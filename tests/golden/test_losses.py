"""Forty steps with the switch at step 20, against losses kept as text.

A refactor reproduces them on any machine. A change that means to change them runs this file as a script, which writes
them anew, and says why in its message:  python -m tests.golden.test_losses
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.testing.distributed import run_distributed

_KEPT = Path(__file__).with_name("losses.json")
_FORTY = ("schedule.0.steps=20", "schedule.1.steps=20", "lr.peak=2e-3", "objectives.mlm.mask_ratio=0.4")


def _losses(folder: Path) -> list[float]:
    case = RunCase(str(write_run(folder)), "zero1", (*_FORTY, f"run.dir={folder / 'golden'}"))
    ((_, lines),) = run_distributed([case], world_size=1)[0]
    return [line["loss"] for line in lines if line["step"]]


def test_losses_are_the_kept_ones(tmp_path):
    kept = json.loads(_KEPT.read_text())
    assert len(kept) == 40
    assert _losses(tmp_path) == pytest.approx(kept, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_they_are_the_kept_ones_within_rounding(tmp_path):
    """fp32 kernels of a GPU sum in another order, and forty steps carry it on: 1e-3, not 1e-5."""
    script = (
        "import sys\nfrom tests.support.runs import RunCase\n"
        f"RunCase(sys.argv[1], 'zero1', {(*_FORTY, f'run.dir={tmp_path}/golden')!r})()\n"
    )
    command = [sys.executable, "-c", script, str(write_run(tmp_path))]
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in read_metrics(tmp_path / "golden") if line["step"]]
    assert losses == pytest.approx(json.loads(_KEPT.read_text()), rel=1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        _KEPT.write_text(json.dumps(_losses(Path(temporary)), indent=0) + "\n")
