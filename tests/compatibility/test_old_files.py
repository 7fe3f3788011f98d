"""What earlier versions wrote stays readable: a corpus and a run of each, small, as they were left on disk.

`0.1` was written before run folders, shards of several sources and rounded vocabularies came: 40 short texts, and 6
steps of a tiny encoder (3 causal, 3 masked) whose checkpoint of step 4 is kept. Two branches leave it there: `branch`,
stopped behind step 7, on rows of another length and then on the run's; `rewarmed`, not begun, with another seed, a new
optimizer and another warm-up. Both have the lines of all their steps.
"""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.forked import run_python
from tests.support.runs import read_metrics
from toolkit.checkpoint.read import open_checkpoint
from toolkit.data import Corpus
from toolkit.run import load_run
from toolkit.run.branching import make_branch
from toolkit.run.step_plan import StepPlan

VERSIONS = ("0.1",)


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy to work in; its settings name folders relative to it."""
    folder = tmp_path / "old"
    shutil.copytree(Path(__file__).parent / request.param, folder)
    return folder


def test_an_old_corpus_is_read(old: Path) -> None:
    corpus = Corpus(old / "corpus")
    manifest = json.loads((old / "corpus" / "corpus.json").read_text())
    assert (corpus.num_documents, corpus.num_tokens) == (manifest["documents"], manifest["tokens"])
    assert corpus.fingerprint == manifest["tokenizer"]["fingerprint"]
    assert corpus.vocabulary.size == manifest["tokenizer"]["vocab_size"]


def test_an_old_run_resumes_to_the_losses_it_had(old: Path) -> None:
    before = {line["step"]: line for line in read_metrics(old / "run")}
    step = open_checkpoint(old / "run" / "checkpoints" / "step-00000004").manifest.step
    code = (
        "from toolkit.run import load_run\nfrom toolkit.training import pretrain\n"
        "pretrain(load_run('run/run.toml'), ds_config='zero1')"
    )
    ended = run_python(["-c", code], folder=old)
    assert ended.code == 0, ended.output
    metrics = read_metrics(old / "run")
    resumed = [line for line in metrics if line["step"] > step]
    assert [line["step"] for line in resumed] == [5, 6]
    for line in resumed:
        assert line["loss"] == pytest.approx(before[line["step"]]["loss"], rel=1e-5)
        assert line["data_digest"] == before[line["step"]]["data_digest"]


@pytest.mark.parametrize(("name", "begun", "last"), [("branch", 7, 9), ("rewarmed", 4, 8)])
def test_an_old_branch_trains_to_the_losses_it_had(old: Path, name: str, begun: int, last: int) -> None:
    before = {line["step"]: line for line in read_metrics(old / name)}
    assert "branch" in tomllib.loads((old / name / "run.toml").read_text())
    code = (
        "from toolkit.run import load_run\nfrom toolkit.training import pretrain\n"
        f"pretrain(load_run('{name}/run.toml'), ds_config='zero1')"
    )
    ended = run_python(["-c", code], folder=old)
    assert ended.code == 0, ended.output
    lines = {line["step"]: line for line in read_metrics(old / name)}
    assert set(range(begun + 1, last + 1)) <= lines.keys()
    for step in range(begun + 1, last + 1):
        for key in ("learning_rate", "data_digest", "tokens", "targets", "objective"):
            assert lines[step][key] == before[step][key], (step, key)
        assert lines[step]["loss"] == pytest.approx(before[step]["loss"], rel=1e-5)
    # It is a fork from now on, and resumes as one.
    assert tomllib.loads((old / name / "run.toml").read_text())["fork"]["step"] == 4


def test_a_branch_leaves_an_old_one(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind step 7 it has read 16 rows of the run's data as that run did, and then 4 of its own."""
    monkeypatch.chdir(old)
    Path("tail.toml").write_text('[[schedule]]\nobjective = "mlm"\nsteps = 4\n[branch]\nlr = "rewarm"\n')
    file = make_branch(Path("branch"), step=7, tail=Path("tail.toml"), output=Path("next"))[0]
    settings = load_run(str(file))
    assert settings.fork is not None
    assert (settings.fork.digest, StepPlan(settings).position(8)) == ("keep", 24)
    objectives = [(phase.objective, phase.steps) for phase in settings.schedule]
    assert objectives == [("clm", 3), ("mlm", 1), ("mlm", 2), ("clm", 1), ("mlm", 4)]
