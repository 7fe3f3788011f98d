"""A branch, or a phase, with longer rows and another rotary base; its export computes the same losses on them."""

import json
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from tests.support.runs import RunCase, write_run
from tests.support.sources import ROOT
from toolkit.conversion import to_hf
from toolkit.run.branching import make_branch
from toolkit.testing.distributed import run_distributed

_TAIL = """
[branch]
lr = "rewarm"
[model]
rope_theta = 500.0
max_position_embeddings = 80
[data]
sequence_length = 80
[[schedule]]
objective = "clm"
steps = 3
"""
_ANGLES = "{rope_theta=500.0, max_position_embeddings=80}"
_MEASURED = run_path(str(ROOT / "docs/examples/context-extension/loss_by_position.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trunk of four steps on rows of 64, a branch of three on rows of 80, and a run with those three as a phase."""
    folder = tmp_path_factory.mktemp("longer")
    trunk = str(write_run(folder, phase_steps=2))
    run_distributed([RunCase(trunk)], world_size=1)
    tail = folder / "long.toml"
    tail.write_text(_TAIL, encoding="utf-8")
    branch = make_branch(folder / "run", step=4, tail=tail, output=folder / "long")[0]
    last = f'{{objective="clm", steps=3, data={{sequence_length=80}}, model={_ANGLES}}}'
    phases = f'schedule=[{{objective="clm", steps=2}}, {{objective="mlm", steps=2}}, {last}]'
    as_phase = RunCase(trunk, overrides=(phases, f"run.dir={folder / 'phases'}"))
    run_distributed([RunCase(str(branch)), as_phase], world_size=1)
    return folder


@pytest.mark.parametrize("name", ["long", "phases"])
def test_the_export_has_the_new_positions_and_the_same_losses(folder: Path, tmp_path: Path, name: str) -> None:
    to_hf(folder / name, tmp_path / "exported", form="causal")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["max_position_embeddings"] == 80
    assert config["rope_parameters"]["rope_theta"] == 500.0

    ids_BS = _MEASURED["long_rows"](str(folder / "corpus"), length=80)
    assert ids_BS.shape[0] > 0
    assert ids_BS.shape[1] == 80
    ours = _MEASURED["token_losses"](_MEASURED["checkpoint_logits"](str(folder / name)), ids_BS)
    exported = _MEASURED["token_losses"](_MEASURED["exported_logits"](str(tmp_path / "exported")), ids_BS)
    assert ours.shape == (len(ids_BS), 79)
    np.testing.assert_allclose(exported, ours, rtol=0, atol=2e-5)


def test_bins_hold_every_target_once(tmp_path: Path) -> None:
    losses = {"before": np.arange(14.0).reshape(2, 7), "after": np.ones((2, 7))}
    lines = _MEASURED["write_table"](tmp_path / "table.csv", losses, width=4)
    assert lines == [
        {"first_position": 0, "last_position": 3, "tokens": 8, "before": 5.0, "after": 1.0},
        {"first_position": 4, "last_position": 6, "tokens": 6, "before": 8.5, "after": 1.0},
    ]
    assert (tmp_path / "table.csv").read_text().splitlines()[1] == "0,3,8,5.0,1.0"
