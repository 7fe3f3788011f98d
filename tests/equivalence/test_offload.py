"""An optimizer in main memory: the same run, resumed with and without it."""

import json
import shutil

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.testing.distributed import run_distributed

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(10)

_OFFLOADED = {"offload_optimizer": {"device": "cpu"}}


def test_losses_and_resumed_losses_are_equal(tmp_path):
    """Two ranks, bf16. Each run is continued from step 4 with the file of the next one."""
    run_file, configs = write_run(tmp_path, phase_steps=3), []
    variants = [
        {"stage": 1},
        {"stage": 1} | _OFFLOADED,
        {"stage": 2} | _OFFLOADED,
        {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {"device": "cpu"}} | _OFFLOADED,
    ]
    for number, zero in enumerate(variants):
        configs.append(str(tmp_path / f"{number}.json"))
        (tmp_path / f"{number}.json").write_text(json.dumps({"zero_optimization": zero}))
    folders = [tmp_path / f"run-{number}" for number in range(len(variants))]

    def losses(shift: int) -> list[list[float]]:
        cases = [
            RunCase(
                str(run_file),
                configs[(number + shift) % len(configs)],
                (f"run.dir={folder}", "precision=bf16", "checkpoint.every=4"),
            )
            for number, folder in enumerate(folders)
        ]
        results = run_distributed(cases, world_size=2)
        return [[line["loss"] for line in ranks[0][1] if line["step"]] for ranks in results]

    whole = losses(0)
    assert len(whole[0]) == 6
    assert all(found == whole[0] for found in whole)
    for folder in folders:
        shutil.rmtree(folder / "checkpoints/step-00000006")
    assert losses(1) == whole
