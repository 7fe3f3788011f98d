"""One run, cut in different ways over micro-batches, ranks and ZeRO stages, is one run."""

from pathlib import Path

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.testing.distributed import run_distributed

_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """Metrics of every variant by a readable name; the first is the one to equal."""
    folder = tmp_path_factory.mktemp("topologies")
    run_file = write_run(folder)
    found = {}
    for world_size, micro_batches in ((1, (1, 2, 4)), (2, (1, 2, 4))):
        variants = [("zero0", (f"train.micro_batch_rows={rows}",)) for rows in micro_batches]
        variants += [(stage, ("train.micro_batch_rows=2",)) for stage in ("zero1", "zero2")]
        variants += [(str(_stage3(folder)), ("train.micro_batch_rows=2",))]
        names = [f"{Path(stage).stem} {overrides[0]} ranks={world_size}" for stage, overrides in variants]
        cases = [
            RunCase(str(run_file), stage, (f"run.dir={folder / name}", *overrides))
            for name, (stage, overrides) in zip(names, variants, strict=True)
        ]
        for name, results in zip(names, run_distributed(cases, world_size=world_size), strict=True):
            found[name] = results[0][1]
    return found


def _stage3(folder: Path) -> Path:
    """Stage 3 that partitions everything: by default it keeps parameters as small as these whole."""
    path = folder / "zero3-partitioned.json"
    path.write_text('{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}')
    return path


def test_losses_are_equal(runs):
    (first, reference), *others = runs.items()
    assert len(reference) == 21
    for name, lines in others:
        assert [line["step"] for line in lines] == list(range(21)), name
        for expected, found in zip(reference[1:], lines[1:], strict=True):
            assert found["loss"] == pytest.approx(expected["loss"], rel=_TOLERANCE), (first, name, found["step"])
            assert found["targets"] == expected["targets"]
            assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-3), (first, name, found["step"])


def test_validation_losses_are_equal(runs):
    (_, reference), *others = runs.items()
    for name, lines in others:
        for expected, found in zip(reference, lines, strict=True):
            assert found.get("eval_loss", {}) == pytest.approx(expected.get("eval_loss", {}), rel=_TOLERANCE), name


def test_data_is_the_same_in_the_same_order(runs):
    digests = {tuple(line["data_digest"] for line in lines) for lines in runs.values()}
    assert len(digests) == 1


def test_the_switch_changes_objective_and_attention(runs):
    reference = next(iter(runs.values()))
    assert [(line["objective"], line["attention"]) for line in reference[10:12]] == [
        ("clm", "causal"),
        ("mlm", "bidirectional"),
    ]
