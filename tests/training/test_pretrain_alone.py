"""`pretrain(settings)` in a plain process, without a launcher."""

from tests.support.forked import run_python
from tests.support.runs import read_metrics, write_run
from toolkit.checkpoint.manifest import read_manifest

_SCRIPT = """
import subprocess
import sys
from importlib import import_module

from toolkit.core.errors import SettingsError
from toolkit.run import RunFolder, load_run
from toolkit.training import pretrain

DYING = '''
import fcntl, sys, time
files = [open(name, "a") for name in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(3)
'''
program, run_folder = (import_module(f"toolkit.{name}") for name in ("training.pretrain", "run.folder"))
run = program._pretrain


def train(folder, ranks, is_stop_requested, *, until, most_steps):
    run_folder._SECONDS_FOR_DYING_RANKS = 0
    for lock in (folder.reserved, folder.locked):
        try:
            with lock():
                print("another run would start")
        except SettingsError as error:
            print(error)
    return run(folder, ranks, is_stop_requested, until=until)


program._pretrain = train
overrides = ["schedule.0.steps=2", "schedule.1.steps=2", "lr.warmup_steps=1", "lr.decay_steps=1"]
settings = load_run(sys.argv[1], overrides)
folder = RunFolder(settings.run.dir)
folder.path.mkdir()
locks = [str(folder.path / name) for name in (".lock", ".starter.lock")]
dying = subprocess.Popen([sys.executable, "-c", DYING, *locks], stdout=subprocess.PIPE)
dying.stdout.readline()
run_folder._SECONDS_FOR_A_DYING_STARTER = 0
print(pretrain(settings))
print("the dying one has left", dying.poll())
print(pretrain(settings))
"""


def test_it_runs_as_the_only_rank(tmp_path):
    """It waits for a rank 0 that is dying, and then holds the folder against `toolkit train` too, which waits less."""
    ended = run_python(["-c", _SCRIPT, str(write_run(tmp_path))], folder=tmp_path)
    assert ended.code == 0, ended.output
    endings = [line for line in ended.output.splitlines() if "finished" in line]
    assert endings == ["finished at step 4", "already finished at step 4"]
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]
    manifest = read_manifest(tmp_path / "run" / "checkpoints" / "step-00000004")
    assert manifest.kernels == {"attention": "sdpa", "blocks": "eager"}
    assert ended.output.count(f"another run is training in {tmp_path / 'run'}.") == 4
    assert "another run would start" not in ended.output
    assert "the dying one has left 0" in ended.output
