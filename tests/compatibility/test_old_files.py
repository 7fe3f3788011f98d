"""What earlier versions wrote stays readable: a corpus and a run of each, small, as they were left on disk.

`0.1` was written before run folders, shards of several sources and rounded vocabularies came: 40 short texts, and 6
steps of a tiny encoder (3 causal, 3 masked) whose checkpoint of step 4 is kept.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.forked import run_python
from tests.support.runs import read_metrics
from toolkit.checkpoint import open_checkpoint
from toolkit.data import Corpus

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
