"""Forty steps with the switch at step 20, against losses kept as text.

A refactor reproduces them on any machine. A change that means to change them runs this file as a script, which writes
them anew, and says why in its message:  python -m tests.golden.test_losses
"""

import json
import tempfile
from pathlib import Path

import pytest

from toolkit.testing.distributed import run_distributed
from toolkit.testing.runs import RunCase, write_run

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        _KEPT.write_text(json.dumps(_losses(Path(temporary)), indent=0) + "\n")
