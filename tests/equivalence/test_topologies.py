"""One run, cut in different ways over micro-batches, ranks and ZeRO stages, is one run."""

from pathlib import Path

import pytest
import torch

from tests.support.layouts import stage3
from tests.support.runs import RunCase, write_run
from toolkit.testing.distributed import run_distributed
from toolkit.testing.tolerances import gradient_tolerance

_PHASE = 1
_RAMP = f"""
[[schedule]]
mix = [
    {{objective = "clm", share = {{from = 0.75, to = 0.25}}, weight = 1.5}},
    {{objective = "mlm", share = {{from = 0.25, to = 0.75}}}},
]
steps = {2 * _PHASE}
"""
_PIPELINED = ("parallel.pp=2",)
_FP32, _BF16 = gradient_tolerance(torch.float32), gradient_tolerance(torch.bfloat16)


def _write_run(folder: Path) -> Path:
    """Three phases: CLM, MLM, and from the one to the other in a ramp, which is twice as long."""
    run_file = write_run(folder, phase_steps=_PHASE)
    run_file.write_text(run_file.read_text() + _RAMP)
    return run_file


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """Metrics of every variant by a readable name; the first is the one to equal."""
    folder = tmp_path_factory.mktemp("topologies")
    run_file = _write_run(folder)
    found = {}
    for world_size, micro_batches in ((1, (1, 4)), (2, (1, 4)), (4, ())):
        variants = [("zero0", (f"train.micro_batch_rows={rows}",)) for rows in micro_batches]
        stages = ("zero1", "zero2", stage3(folder))
        if world_size < 4:
            variants += [(stage, ("train.micro_batch_rows=2",)) for stage in stages]
        if world_size == 2:
            variants += [(stage, ("parallel.tp=2",)) for stage in stages]
            variants += [("pipeline", ("parallel.pp=2", "train.activation_checkpointing=selective"))]
        if world_size > 1:
            # Each stage has two micro-batches.
            variants += [("pipeline", ("parallel.pp=2", f"train.micro_batch_rows={8 // world_size}"))]
        if world_size == 4:
            variants += [("pipeline", ("parallel.pp=2", "parallel.tp=2"))]
        names = [f"{Path(stage).stem} {' '.join(overrides)} ranks={world_size}" for stage, overrides in variants]
        cases = [
            RunCase(str(run_file), stage, (f"run.dir={folder / name}", *overrides))
            for name, (stage, overrides) in zip(names, variants, strict=True)
        ]
        for name, results in zip(names, run_distributed(cases, world_size=world_size), strict=True):
            found[name] = results[0][1]
    return found


def test_losses_are_equal(runs):
    (first, reference), *others = runs.items()
    assert len(reference) == 4 * _PHASE + 1
    for name, lines in others:
        assert [line["step"] for line in lines] == list(range(4 * _PHASE + 1)), name
        for expected, found in zip(reference[1:], lines[1:], strict=True):
            assert found["loss"] == pytest.approx(expected["loss"], rel=_FP32), (first, name, found["step"])
            assert found["targets"] == expected["targets"]
            assert found.get("losses", {}) == pytest.approx(expected.get("losses", {}), rel=_FP32), (
                name,
                found["step"],
            )
            assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-3), (first, name, found["step"])


def test_bf16_losses_are_those_of_fp32_within_rounding(runs, tmp_path):
    """Each stage that has fp32 master weights; later steps carry on the rounding of the first."""
    run_file = _write_run(tmp_path)
    (_, reference), *_ = runs.items()
    for world_size, stages in ((1, ("zero1",)), (2, ("zero1", "zero2", stage3(tmp_path)))):
        cases = [
            RunCase(
                str(run_file),
                stage,
                (f"run.dir={tmp_path / Path(stage).stem}-{world_size}", 'precision="bf16"', "train.micro_batch_rows=2"),
            )
            for stage in stages
        ]
        for case, results in zip(cases, run_distributed(cases, world_size=world_size), strict=True):
            for expected, found in zip(reference[1:], results[0][1][1:], strict=True):
                assert found["loss"] == pytest.approx(expected["loss"], rel=_BF16), (case, found["step"])
                assert found["data_digest"] == expected["data_digest"]


def test_a_z_loss_is_the_same_on_any_layout_and_in_no_logged_loss(runs, tmp_path):
    run_file = _write_run(tmp_path)
    (_, without), *_ = runs.items()
    found = []
    for ranks, layouts in ((1, [("zero1", ())]), (2, [("zero1", ("parallel.tp=2",)), ("pipeline", _PIPELINED)])):
        cases = [
            RunCase(str(run_file), stage, ("train.z_loss=1.0", f"run.dir={tmp_path / stage}-{ranks}", *overrides))
            for stage, overrides in layouts
        ]
        found += [results[0][1] for results in run_distributed(cases, world_size=ranks)]
    reference, *others = found
    for lines in others:
        for expected, line in zip(reference[1:], lines[1:], strict=True):
            assert line["loss"] == pytest.approx(expected["loss"], rel=_FP32), line["step"]
            assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-3), line["step"]
    assert reference[0]["eval_loss"] == pytest.approx(without[0]["eval_loss"], rel=1e-6)
    assert reference[1]["loss"] == pytest.approx(without[1]["loss"], rel=1e-6)
    assert reference[1]["grad_norm"] != pytest.approx(without[1]["grad_norm"], rel=0.02)


def test_validation_losses_are_equal(runs):
    (_, reference), *others = runs.items()
    for name, lines in others:
        for expected, found in zip(reference, lines, strict=True):
            assert found.get("eval_loss", {}) == pytest.approx(expected.get("eval_loss", {}), rel=_FP32), name


def test_data_is_the_same_in_the_same_order(runs):
    digests = {tuple(line["data_digest"] for line in lines) for lines in runs.values()}
    assert len(digests) == 1


def test_the_switch_changes_objective_and_attention(runs):
    reference = next(iter(runs.values()))
    assert [(line["objective"], line["attention"]) for line in reference[_PHASE : _PHASE + 2]] == [
        ("clm", "causal"),
        ("mlm", "bidirectional"),
    ]
