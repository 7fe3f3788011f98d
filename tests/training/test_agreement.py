"""What all ranks of a run must have in common: the run folder, corpora, first weights and packages."""

import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.manifest import MANIFEST_NAME
from toolkit.core.errors import SettingsError
from toolkit.run import data as data_of_runs
from toolkit.run.data import open_run_data
from toolkit.run.load import declare_run
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.distributed import run_distributed
from toolkit.training.agreement import Input, check_same_inputs, differences


@dataclass(frozen=True)
class StartsElsewhere:
    """A run whose ranks start in the folders node-0 and node-1; returns its error."""

    run_file: str
    folder: str
    overrides: tuple[str, ...]

    def __call__(self) -> str:
        place = Path(self.folder) / f"node-{os.environ['RANK']}"
        before = Path.cwd()
        os.chdir(place)
        try:
            RunCase(self.run_file, "zero0", ("checkpoint.every=1", *self.overrides))()
        except SettingsError as error:
            return str(error)
        finally:
            os.chdir(before)
        return "finished"


def test_another_run_folder_or_corpus_is_refused_before_the_first_step(tmp_path):
    """Relative paths from two places, as copies on the disks of two machines."""
    run_file = str(write_run(tmp_path))
    shutil.copytree(tmp_path / "corpus", tmp_path / "node-0" / "corpus")
    documents = random_documents(100, vocabulary_size=97, max_length=90, first_id=3, seed=5)
    write_token_corpus(tmp_path / "node-1" / "corpus", documents, vocabulary_size=97, eos=0, pad=1, mask=2)
    folder, corpus = run_distributed(
        [
            StartsElsewhere(run_file, str(tmp_path), ("run.dir=runs/first",)),
            StartsElsewhere(run_file, str(tmp_path), ("data.train=corpus",)),
        ],
        world_size=2,
    )
    assert folder[0] == folder[1]
    assert "rank 1" in folder[0]
    assert "does not see" in folder[0]
    assert corpus[0] == corpus[1]
    assert "data.train: rank 0 on " in corpus[0]
    assert f"({tmp_path}/node-1/corpus)" in corpus[0]
    assert "data.validation" not in corpus[0]
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_nothing_is_left_of_the_look_at_it(tmp_path):
    ((outcome, _),) = run_distributed([RunCase(str(write_run(tmp_path)), "zero0", ("eval.rows=1",))], world_size=2)[0][
        :1
    ]
    assert outcome == "finished at step 20"
    assert not list((tmp_path / "run").glob(".look-*"))


def test_each_difference_names_the_first_rank_that_has_another():
    same, other = Input("a1", "/nvme/corpus"), Input("b2", "/nvme/corpus")
    gathered = [
        ("ann", {"data.train": same, "torch": Input("2.13.0")}),
        ("ann", {"data.train": Input("a1", "/disk/corpus"), "torch": Input("2.13.0")}),
        ("bob", {"data.train": other, "torch": Input("2.13.0")}),
        ("bob", {"data.train": other, "torch": Input("2.12.1")}),
    ]
    assert differences(gathered[:2]) == []
    assert differences(gathered) == [
        "data.train: rank 0 on ann has a1 (/nvme/corpus), rank 2 on bob has b2 (/nvme/corpus)",
        "torch: rank 0 on ann has 2.13.0, rank 3 on bob has 2.12.1",
    ]


@pytest.mark.parametrize(
    ("setting", "theirs"),
    [
        ("schedule.1.data.train", Input("SHA-256 0")),
        ("data.validation", Input("SHA-256 0")),
        ("init.from", Input("SHA-256 0", "/nvme/model")),
        ("toolkit", Input("0.0.1")),
        ("torch", Input("1.0")),
        ("objectives of kind clm", Input("others 0.2")),
    ],
)
def test_every_corpus_the_first_weights_and_versions_are_compared(tmp_path, monkeypatch, setting, theirs):
    monkeypatch.setattr(data_of_runs, "package_of", {"clm": "others 0.1"}.get)
    run_file = str(write_run(tmp_path))
    data = open_run_data(declare_run(run_file, [f'schedule.1.data={{train="{tmp_path}/validation"}}']))
    (tmp_path / MANIFEST_NAME).write_text("{}")

    def check(other):
        ranks = SimpleNamespace(
            device=torch.device("cpu"),
            together=nullcontext,
            gather_on_first=lambda mine: [mine, ("another", {**mine[1], **other}), mine],
        )
        check_same_inputs(ranks, data, SimpleNamespace(path=tmp_path), key="init.from")

    check({})
    with pytest.raises(SettingsError, match=rf"(?s){setting}: rank 0 on .* rank 1 on another .*Put the same files"):
        check({setting: theirs})
