"""`pretrain(settings)` in a plain process, without a launcher."""

from tests.support.forked import run_python
from tests.support.runs import read_metrics, write_run
from toolkit.checkpoint.manifest import read_manifest

_SCRIPT = """
import sys
from importlib import import_module

from toolkit.core.errors import SettingsError
from toolkit.run import load_run
from toolkit.training import pretrain

program = import_module("toolkit.training.pretrain")
run = program._pretrain


def train(folder, ranks, is_stop_requested):
    try:
        with folder.reserved():
            print("toolkit train would start ranks")
    except SettingsError as error:
        print(error)
    return run(folder, ranks, is_stop_requested)


program._pretrain = train
overrides = ["schedule.0.steps=2", "schedule.1.steps=2", "lr.warmup_steps=1", "lr.decay_steps=1"]
settings = load_run(sys.argv[1], overrides)
print(pretrain(settings))
print(pretrain(settings))
"""


def test_it_runs_as_the_only_rank(tmp_path):
    """And holds the folder against `toolkit train` too, which then need not wait for ranks that may be dying."""
    ended = run_python(["-c", _SCRIPT, str(write_run(tmp_path))], folder=tmp_path)
    assert ended.code == 0, ended.output
    endings = [line for line in ended.output.splitlines() if "finished" in line]
    assert endings == ["finished at step 4", "already finished at step 4"]
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]
    manifest = read_manifest(tmp_path / "run" / "checkpoints" / "step-00000004")
    assert manifest.kernels == {"attention": "sdpa", "blocks": "eager"}
    assert ended.output.count(f"another run is training in {tmp_path / 'run'}.") == 2
    assert "would start ranks" not in ended.output
