"""Forty steps with the switch at step 20, against losses kept as text.

The corpus is a chain of ids: half of the time an id is followed by its one successor, so that the curve moves and a
fault that only slows learning shows. A refactor reproduces the losses on any machine; micro-batches of 1, 2 and 8 rows
differ by 2e-7. A change that means to change them runs this file as a script, which writes them again, and says why in
its message:  python -m tests.golden.test_losses
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.testing.corpora import write_token_corpus
from toolkit.testing.distributed import run_distributed

_KEPT = Path(__file__).with_name("losses.json")
_FORTY = ("schedule.0.steps=20", "schedule.1.steps=20", "lr.peak=5e-3", "objectives.mlm.mask_ratio=0.4")
_VOCABULARY, _FIRST_ID = 97, 3


def _chain(folder: Path) -> Path:
    """A corpus of 600 documents in which an id's successor, or else an id as frequent as words are, comes next."""
    generator = np.random.default_rng(3)
    successors = generator.permutation(np.arange(_FIRST_ID, _VOCABULARY))
    documents = []
    for _ in range(600):
        length = int(generator.integers(20, 65))
        is_follower = generator.random(length) < 0.5
        ids = _FIRST_ID + generator.zipf(1.5, length) % (_VOCABULARY - _FIRST_ID)
        for number in np.flatnonzero(is_follower[1:]) + 1:
            ids[number] = successors[ids[number - 1] - _FIRST_ID]
        documents.append(ids)
    return write_token_corpus(folder, documents, vocabulary_size=_VOCABULARY, eos=0, pad=1, mask=2)


def _case(folder: Path) -> RunCase:
    data = f"data.train={_chain(folder / 'chain')}"
    return RunCase(str(write_run(folder)), "zero1", (*_FORTY, data, f"run.dir={folder / 'golden'}"))


def _losses(folder: Path) -> list[float]:
    ((_, lines),) = run_distributed([_case(folder)], world_size=1)[0]
    return [line["loss"] for line in lines if line["step"]]


def test_the_model_learns_from_them():
    kept = json.loads(_KEPT.read_text())
    assert len(kept) == 40
    assert np.mean(kept[17:20]) < kept[0] - 1.0
    assert np.mean(kept[-5:]) < kept[0] - 0.5


def test_losses_are_the_kept_ones(tmp_path):
    kept = json.loads(_KEPT.read_text())
    assert len(kept) == 40
    assert _losses(tmp_path) == pytest.approx(kept, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_they_are_the_kept_ones_within_rounding(tmp_path):
    """fp32 kernels of a GPU sum in another order, and forty steps carry it on: 1e-3, not 1e-5."""
    script = (
        "import sys\nfrom tests.support.runs import RunCase\nRunCase(sys.argv[1], 'zero1', tuple(sys.argv[2:]))()\n"
    )
    case = _case(tmp_path)
    # Eager, as the kept ones are.
    command = [sys.executable, "-c", script, case.run_file, *case.overrides, "train.compile=false"]
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in read_metrics(tmp_path / "golden") if line["step"]]
    assert losses == pytest.approx(json.loads(_KEPT.read_text()), rel=1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        _KEPT.write_text(json.dumps(_losses(Path(temporary)), indent=0) + "\n")
