"""Phases that carry settings: each equals the same phases trained as runs of their own, on every layout."""

from pathlib import Path

import pytest

from tests.resume.test_resume import CutOff, differing_tensors
from tests.support.layouts import stage3
from tests.support.runs import MODERNBERT, ULTRABERT, RunCase, read_metrics, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.run.branching import make_branch
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(20)

_SAME = ("loss", "targets", "learning_rate", "grad_norm", "objective", "attention")


def _phases(folder: Path) -> str:
    """CLM as in the run; MLM by other angles on the validation corpus, rows of 256, half as many; from CLM to MLM
    in a ramp on the first data again, with steps of 8, 8 and 16 rows."""
    other = folder / "validation"
    return (
        'schedule=[{objective="clm", steps=4}, '
        f'{{objective="mlm", steps=3, global_batch_rows=4, data={{train="{other}", sequence_length=256}}, '
        "model={rope_theta=40000.0, max_position_embeddings=256}, "
        'lr="rewarm", lr_peak=5e-3, optimizer="reset"}, '
        '{mix=[{objective="clm", share={from=1.0, to=0.25}}, '
        '{objective="mlm", share={from=0.0, to=0.75}, weight=2.0}], '
        "steps=3, global_batch_rows=16, batch_warmup_rows=8, batch_warmup_tokens=1000}]"
    )


@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_around_every_boundary(tmp_path: Path, world_size: int) -> None:
    """Before, at and behind each, and across the next; on two ranks a layout has one of these at either boundary, and
    full layers of models with windows have another base in the second phase.
    """
    run_file = write_run(tmp_path, phase_steps=4)
    everywhere = ((3, 7), (4, 8), (5,))
    # A full layer without a norm, one with a window, and a full one; or one with a window, a full one, and another.
    modernbert, ultrabert = (
        (model, "model.num_hidden_layers=3", "model.tie_word_embeddings=true") for model in (MODERNBERT, ULTRABERT)
    )
    layouts: list[tuple[str, str, tuple[tuple[int, ...], ...], tuple[str, ...]]]
    layouts = [("zero0", "fp32", everywhere, ()), ("zero1", "bf16", everywhere, ())]
    if world_size > 1:
        layouts = [("zero0", "fp32", ((3, 5, 7),), ()), ("zero1", "bf16", ((4, 6, 8),), ())]
        layouts += [("zero2", "fp32", ((4, 6, 8),), modernbert), (stage3(tmp_path), "bf16", ((3, 5, 7),), ultrabert)]
    cases = []
    for ds_config, precision, stops, model in layouts:
        folder = tmp_path / f"{Path(ds_config).stem}-{precision}"
        folder.mkdir()
        overrides = (*model, f'precision="{precision}"', _phases(tmp_path), "lr.warmup_steps=1", "lr.decay_steps=1")
        cases.append(CutOff(str(run_file), str(folder), ds_config, overrides, stops))
    for layout, results in zip(layouts, run_distributed(cases, world_size=world_size), strict=True):
        assert results[0] == [], layout


def test_ranks_and_pipelines_see_the_same(tmp_path: Path) -> None:
    run_file = str(write_run(tmp_path, phase_steps=4))
    # With four rows of 64 and one of 256, stages would send as many numbers in either phase, whatever their shape.
    shared = (_phases(tmp_path), "lr.warmup_steps=1", "lr.decay_steps=1", "train.micro_batch_rows=2")
    runs = {"one": (1, "zero0", ()), "two": (2, "zero2", ()), "stages": (2, "pipeline", ("parallel.pp=2",))}
    runs["shares"] = (2, "zero1", ("parallel.tp=2",))
    for size in (1, 2):
        cases = [
            RunCase(run_file, config, (*shared, *more, f"run.dir={tmp_path / name}"))
            for name, (ranks, config, more) in runs.items()
            if ranks == size
        ]
        run_distributed(cases, world_size=size)
    expected = read_metrics(tmp_path / "one")
    for name in ("two", "stages", "shares"):
        found = read_metrics(tmp_path / name)
        assert [line["data_digest"] for line in found] == [line["data_digest"] for line in expected], name
        for line, same in zip(found[1:], expected[1:], strict=True):
            assert line["loss"] == pytest.approx(same["loss"], rel=2e-5), (name, line["step"])


def test_a_phase_equals_a_run_of_its_own(tmp_path: Path) -> None:
    """Each later phase as a branch from the end of the one before it, which has its data and rows as the run's."""
    run_file = write_run(tmp_path, phase_steps=4)
    shared = ("lr.warmup_steps=1", "lr.decay_steps=1", "checkpoint.keep_at=[4, 5, 7, 8]")
    unturned = (_phases(tmp_path).replace("40000.0", "10000.0"), *shared, f"run.dir={tmp_path / 'unturned'}")
    cases = [RunCase(str(run_file), "zero0", more) for more in ((_phases(tmp_path), *shared), unturned)]
    run_distributed(cases, world_size=1)
    whole, without = (
        {line["step"]: line for line in read_metrics(tmp_path / name) if "loss" in line} for name in ("run", "unturned")
    )
    # The angles of the second phase are those that its steps are computed with.
    assert [whole[step]["loss"] == without[step]["loss"] for step in range(1, 8)] == [True] * 4 + [False] * 3
    tail = tmp_path / "tail.toml"
    tail.write_text(
        f"""
[[schedule]]
objective = "mlm"
steps = 6
[train]
global_batch_rows = 4
micro_batch_rows = 1
[data]
train = "{tmp_path / "validation"}"
sequence_length = 256
[model]
rope_theta = 40000.0
[lr]
peak = 5e-3
[branch]
lr = "rewarm"
optimizer = "reset"
"""
    )
    branch = make_branch(tmp_path / "run", step=4, tail=tail, output=tmp_path / "branch")[0]
    run_distributed([RunCase(str(branch))], world_size=1)
    lines = {line["step"]: line for line in read_metrics(tmp_path / "branch") if "loss" in line}
    for step in (5, 6, 7):
        assert {key: lines[step][key] for key in _SAME} == {key: whole[step][key] for key in _SAME}, step
    one = open_checkpoint(tmp_path / "branch" / "checkpoints" / "step-00000007")
    other = open_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000007")
    assert differing_tensors(one, other) == []
    assert [checkpoint.manifest.table("model")["rope_theta"] for checkpoint in (one, other)] == [40000.0, 40000.0]
    assert [_state(tmp_path, step) for step in (4, 5, 7, 8, 10)] == [
        # After the first phase: the next row is the first of other data; its optimizer has seen 4 updates.
        (0, 4),
        (4, 1),
        # The first data go on where they stopped, 4 steps of 8 rows.
        (4 * 8, 3),
        (4 * 8 + 8, 4),
        (4 * 8 + 8 + 8 + 16, 6),
    ]


def _state(folder: Path, step: int) -> tuple[int, int]:
    manifest = open_checkpoint(folder / "run" / "checkpoints" / f"step-{step:08d}").manifest
    return manifest.data_position, manifest.optimizer_step
