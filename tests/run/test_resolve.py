"""From settings to everything a rank needs."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CorpusError
from toolkit.core.types import AttentionKind, Targets
from toolkit.objectives import registry
from toolkit.run import load_run
from toolkit.run.load import to_toml
from toolkit.run.resolve import open_run_data
from toolkit.testing.distributed import run_distributed


class Vanishing:
    """Predicts nothing, and on the way removes the folder that its settings name."""

    name = "vanishing"
    attention = AttentionKind.CAUSAL

    class Settings(BaseModel):
        folder: str = ""
        window: int | None = None

    def __init__(self, settings: Any, vocabulary: Any) -> None:
        self._folder = settings.folder

    def build(self, tokens_BS: Any, segments_BS: Any, draws: Any) -> Targets:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Targets(tokens_BS, np.zeros(1, np.int64), tokens_BS.ravel()[:1])


@pytest.fixture
def vanishing(monkeypatch):
    monkeypatch.setitem(registry._registered, "vanishing", Vanishing)


def test_an_optional_setting_of_a_plugin_may_stay_unset(tmp_path, vanishing):
    settings = load_run(str(write_run(tmp_path)), ["schedule.0.objective=vanishing"])
    again = tmp_path / "again.toml"
    again.write_text(to_toml(open_run_data(settings).settings))
    assert load_run(str(again)).objectives["vanishing"].plain() == {"kind": "vanishing", "folder": ""}


def test_a_corpus_without_its_tokenizer_is_refused_before_the_start(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    shutil.rmtree(tmp_path / "corpus" / "tokenizer")
    with pytest.raises(CorpusError, match=r"data\.train .*has no folder tokenizer/(.|\n)*Copy the corpus again"):
        open_run_data(settings)


@dataclass(frozen=True)
class _VanishingCase(RunCase):
    def __call__(self) -> Any:
        registry._registered["vanishing"] = Vanishing
        return super().__call__()


def test_a_corpus_that_goes_away_during_the_run_does_no_harm(tmp_path):
    run_file, tokenizer = str(write_run(tmp_path)), tmp_path / "corpus" / "tokenizer"
    names = sorted(path.name for path in tokenizer.iterdir())
    overrides = ("schedule.1.objective=vanishing", f'objectives.vanishing.folder="{tokenizer}"', "checkpoint.every=15")
    run_distributed([_VanishingCase(run_file, "zero1", overrides)], world_size=1)
    assert not tokenizer.exists()
    saved = Path(tmp_path / "run" / "checkpoints" / "step-00000020" / "tokenizer")
    assert sorted(path.name for path in saved.iterdir()) == names
