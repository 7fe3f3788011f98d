"""`pretrain(settings)` in a plain process, without a launcher."""

import subprocess
import sys

from tests.support.runs import read_metrics, write_run


def test_it_runs_as_the_only_rank(tmp_path):
    script = (
        "import sys\nfrom toolkit.run import load_run\nfrom toolkit.training import pretrain\n"
        "settings = load_run(sys.argv[1], ['schedule.0.steps=2', 'schedule.1.steps=2', 'lr.warmup_steps=1', "
        "'lr.decay_steps=1'])\nprint(pretrain(settings))\nprint(pretrain(settings))\n"
    )
    command = [sys.executable, "-c", script, str(write_run(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    endings = [line for line in done.stdout.splitlines() if "finished" in line]
    assert endings == ["finished at step 4", "already finished at step 4"]
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]
