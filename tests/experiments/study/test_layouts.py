"""Models of a study on two ranks, which share a layout that their settings leave open: each equals the one alone."""

from pathlib import Path

import pytest

from tests.experiments.study.test_plan import Study, files, planned, train, write_study
from tests.support.runs import write_run
from toolkit.checkpoint.read import open_checkpoint

pytestmark = pytest.mark.slow

# Of four blocks, the first model's schedule would put two into each of two stages, the second's three into the first.
_UNEVEN = """
[set.model]
num_hidden_layers = 4
vocab_size = 512
[set.objectives.mlm]
mask_ratio = 0.15
[set.parallel]
pp = 2
"""


@pytest.mark.parametrize(("ds_config", "head", "stages"), [("zero2", "", ()), ("pipeline", _UNEVEN, (2, 2))])
def test_every_model_is_the_one_trained_alone(
    tmp_path: Path, ds_config: str, head: str, stages: tuple[int, ...]
) -> None:
    run_file = write_run(tmp_path, phase_steps=4)
    run_file.write_text(run_file.read_text().replace("micro_batch_rows = 4", ""))
    source = write_study(tmp_path, ["clm 3 + mlm 8", "clm 6"], head=head)
    pieces = train(Study(source, ds_config=ds_config, alone=str(tmp_path / "alone")), ranks=2)
    names = ("run-clm-3-mlm15-11", "run-clm-6") if head else ("run-clm-3-mlm40-11", "run-clm-6")
    assert pieces == [(names[0], 0, 3), (names[0], 3, 11), (names[1], 3, 6)]
    assert planned(source).pieces == ()
    for name in names:
        assert files(tmp_path / "study/runs" / name) == files(tmp_path / "alone" / name), name
        assert open_checkpoint(tmp_path / "study/runs" / name).manifest.layout.stages == stages
