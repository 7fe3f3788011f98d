"""Weights & Biases: refused in words without the package; with it, offline, one run over a stop and a resume."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.run import RunFolder, checks, load_run
from toolkit.run.checks import check_wandb
from toolkit.training.wandb_writer import WandbWriter

_HAS_WANDB = importlib.util.find_spec("wandb") is not None


@pytest.mark.parametrize(("value", "shown"), [("true", "true"), ('"my-project"', "'my-project'")])
def test_without_the_package_it_says_what_to_install(monkeypatch, tmp_path, value, shown):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    settings = load_run(str(write_run(tmp_path)), [f"log.wandb={value}"])
    with pytest.raises(SettingsError, match=rf"log.wandb = {shown} .*\n.*pip install wandb"):
        check_wandb(settings)


def test_not_asked_for_it_is_not_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "find_spec", pytest.fail)
    check_wandb(load_run(str(write_run(tmp_path))))


def test_a_package_that_does_not_load_is_told(monkeypatch, tmp_path):
    (tmp_path / "wandb.py").write_text("import no_such_module_of_wandb")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(SettingsError, match=r"be imported: No module named 'no_such_module_of_wandb'\n.*reinstall"):
        WandbWriter(RunFolder(tmp_path), project=None, resumed_step=None, settings={})


@pytest.mark.skipif(not _HAS_WANDB, reason="the extra wandb is not installed")
def test_offline_a_resumed_run_is_the_same_run(monkeypatch, tmp_path):
    """Two stretches of one run, cut by an injected stop; both files on disk carry the id and the curves."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    script = (
        "import sys\nfrom toolkit.run import load_run\nfrom toolkit.training import pretrain\n"
        "from importlib import import_module\nprogram = import_module('toolkit.training.pretrain')\n"
        "class Stop:\n    def __init__(self): self.left = int(sys.argv[2])\n"
        "    def __call__(self): self.left -= 1; return self.left < 0\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *error): pass\n"
        "program.StopRequest = Stop\n"
        "settings = load_run(sys.argv[1], ['schedule.0.steps=2', 'schedule.1.steps=2', 'lr.warmup_steps=1', "
        "'lr.decay_steps=1', 'log.wandb=\"toy\"'])\nprint(pretrain(settings))\n"
    )
    run_file = str(write_run(tmp_path))
    # It is asked twice before the first step, then once in each.
    for answers, ending in (("3", "stopped at step 2"), ("9", "finished at step 4")):
        command = [sys.executable, "-c", script, run_file, answers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == ending, done.stdout
    run_id = (tmp_path / "run" / "wandb-run-id.txt").read_text().strip()
    written = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert [folder.name.rsplit("-", 1)[1] for folder in written] == [run_id, run_id]
    # What the package keeps is a log of plain records: a phase's curve is named in the file of the steps that made it.
    first, second = (next(folder.glob("*.wandb")).read_bytes() for folder in written)
    assert [b"loss/clm" in first, b"loss/mlm" in first] == [True, False]
    assert [b"loss/clm" in second, b"loss/mlm" in second] == [False, True]
    assert all(b"validation/clm" in log and b"model_flops_per_second" in log for log in (first, second))


@pytest.mark.parametrize(("error", "exit_code"), [(None, 0), (RuntimeError("out of memory"), 1)])
def test_a_run_that_crashed_is_shown_as_failed(monkeypatch, tmp_path, error, exit_code):
    finished = []
    run = SimpleNamespace(
        id="toy", define_metric=lambda *args, **options: None, finish=lambda exit_code=None: finished.append(exit_code)
    )
    package = SimpleNamespace(
        init=lambda **options: run, Settings=lambda **options: None, errors=SimpleNamespace(Error=Exception)
    )
    monkeypatch.setitem(sys.modules, "wandb", package)
    WandbWriter(RunFolder(tmp_path), project=None, resumed_step=None, settings={}).close(error)
    assert finished == [exit_code]
