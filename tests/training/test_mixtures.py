"""Runs with mixtures: what they write down, and the plain phase as the mixture of one objective."""

from pathlib import Path

import pytest

from tests.resume.test_resume import differing_tensors
from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.run import RunFolder
from toolkit.run.load import read_resolved
from toolkit.run.metrics import scalars

_SHORT = ("lr.warmup_steps=1", "lr.decay_steps=1")
_PHASES = (
    'schedule=[{objective="clm", steps=2}, {mix=[{objective="mlm", share=0.625, weight=2.0}, '
    '{objective="clm", share=0.375}], steps=2}, {objective="diffusion", steps=1}]'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    write_run(folder, phase_steps=2)
    return folder


def _run(folder: Path, name: str, *overrides: str) -> list[dict]:
    _, lines = RunCase(str(folder / "run.toml"), overrides=(f"run.dir={folder / name}", *_SHORT, *overrides))()
    return lines


def test_a_share_of_1_is_the_plain_phase_to_the_last_bit(folder):
    plain = _run(folder, "plain")
    mixed = _run(
        folder, "mixed",
        'schedule=[{mix=[{objective="clm", share=1.0}], steps=2}, {mix=[{objective="mlm", share=1.0}], steps=2}]',
    )  # fmt: skip
    for line, expected in zip(mixed, plain, strict=True):
        for key in ("loss", "targets", "grad_norm", "objective", "attention", "data_digest", "eval_loss"):
            assert line.get(key) == expected.get(key)
    runs = [RunFolder(folder / name) for name in ("plain", "mixed")]
    first, second = (open_checkpoint(run.checkpoints / "step-00000004") for run in runs)
    assert first.manifest.losses == second.manifest.losses
    assert differing_tensors(first, second) == []


def test_a_line_has_the_means_of_its_objectives_and_their_weighted_sum(folder):
    lines = _run(folder, "phases", _PHASES)
    assert [line.get("objective") for line in lines[1:]] == ["clm"] * 2 + ["mlm+clm"] * 2 + ["diffusion"]
    assert [line["attention"] for line in lines[1:]] == ["causal"] * 2 + ["mixed"] * 2 + ["bidirectional"]
    for line in lines[3:5]:
        losses = line["losses"]
        assert line["loss"] == pytest.approx(2.0 * 0.625 * losses["mlm"] + 0.375 * losses["clm"], rel=1e-6)
        assert list(line["targets"]) == ["mlm", "clm"]
        assert line["targets"]["clm"] > line["targets"]["mlm"] > 0
        assert scalars(line)["loss/clm"] == losses["clm"]
        assert scalars(line)["loss/mlm+clm"] == line["loss"]
    assert "losses" not in lines[5]
    manifest, run = RunFolder(folder / "phases").newest_manifest(), RunFolder(folder / "phases")
    assert {f"train/{name}" for name in ("clm", "mlm", "diffusion")} <= manifest.losses.keys()
    assert manifest.losses["train/mlm"] == lines[4]["losses"]["mlm"]
    # The digest is that of the same rows under any objectives.
    assert lines[4]["data_digest"] == _run(folder, "alone", 'schedule=[{objective="mlm", steps=4}]')[4]["data_digest"]
    resolved = read_resolved(run.settings_file)
    assert resolved.settings.schedule[1].name == "mlm+clm"
    assert resolved.plan.schedule.phases[1].shares == "0.625 mlm (weight 2) + 0.375 clm"
