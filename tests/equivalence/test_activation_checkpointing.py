"""A run whose blocks compute again in the backward pass is the same run, also where weights are taken away between."""

import pytest

from tests.support.layouts import stage3
from tests.support.runs import RunCase, write_run
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(10)


@pytest.mark.parametrize(("tp", "pp", "precisions"), [(1, 1, ("fp32", "bf16")), (2, 1, ("bf16",)), (1, 2, ("fp32",))])
def test_losses_are_equal(tp, pp, precisions, tmp_path):
    """Two ranks: every parameter partitioned by ZeRO stage 3, weights shared, or two stages."""
    run_file = write_run(tmp_path, phase_steps=1)
    config = "pipeline" if pp == 2 else "zero1" if tp == 2 else stage3(tmp_path)
    cases = [
        RunCase(
            str(run_file),
            config,
            (
                f"run.dir={tmp_path / precision / mode}",
                f"precision={precision}",
                "lr.decay_steps=1",
                f"parallel.tp={tp}",
                f"parallel.pp={pp}",
                f"train.activation_checkpointing={mode}",
            ),
        )
        for precision in precisions
        for mode in ("none", "selective", "full")
    ]
    runs = [results[0][1] for results in run_distributed(cases, world_size=2)]
    for plain, *others in (runs[:3], runs[3:])[: len(precisions)]:
        assert len(plain) == 3
        for lines in others:
            assert [line.get("loss") for line in lines] == [line.get("loss") for line in plain]
            assert [line.get("grad_norm") for line in lines] == [line.get("grad_norm") for line in plain]
            assert lines[-1]["data_digest"] == plain[-1]["data_digest"]
