"""`toolkit preprocess fineweb-edu`, as it stands in the README, against a hub on the loopback."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.apart import run_apart
from tests.support.fineweb import FINEWEB, FINEWEB_CARD, write_fineweb
from tests.support.hub_server import HubServer
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.data import Corpus


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    root = tmp_path / "hub"
    repository = root / "datasets" / FINEWEB
    texts = list(sample_documents(90, seed=8))
    write_fineweb(repository / "sample/10BT/001_00000.parquet", texts[30:60], group_rows=10)
    write_fineweb(repository / "sample/10BT/000_00000.parquet", texts[:30], group_rows=10)
    write_fineweb(repository / "data/CC-MAIN-2013-20/train-00000-of-00014.parquet", texts[60:], group_rows=10)
    (repository / "README.md").write_text(FINEWEB_CARD)
    tiny_tokenizer(root / "models" / "EuroBERT" / "EuroBERT-210m")
    return root


def toolkit(folder: Path, hub: HubServer, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf-home")}
    return run_apart("-m", "toolkit.cli", *words, folder=folder, environment=environment)


def test_the_bare_command_prepares_the_sample_with_the_recipes_tokenizer(tmp_path: Path, hub_folder: Path) -> None:
    with HubServer(hub_folder) as hub:
        first = toolkit(tmp_path, hub, "preprocess", "fineweb-edu")
        again = toolkit(tmp_path, hub, "preprocess", "fineweb-edu")
        dump = toolkit(tmp_path, hub, "preprocess", "fineweb-edu", "--subset", "CC-MAIN-2013-20", "--output", "dump")
        unknown = toolkit(tmp_path, hub, "preprocess", "fineweb-edu", "--subset", "sample-10B", "--output", "x")

    assert first.returncode == 0, first.stderr
    corpus = Corpus(tmp_path / "data/fineweb-edu")
    assert corpus.num_documents == 60
    commit = hub.commit_of("datasets/HuggingFaceFW/fineweb-edu")
    assert [shard.source for shard in corpus.manifest.shards] == [
        f"hub://HuggingFaceFW/fineweb-edu@{commit}/sample/10BT/000_00000.parquet and 1 more"
    ]
    assert json.loads((tmp_path / "data/fineweb-edu/tokenizer/tokenizer_config.json").read_text())["mask_token"]
    assert again.returncode == 0, again.stderr
    assert "data/fineweb-edu is already finished: 60 documents" in again.stdout
    assert dump.returncode == 0, dump.stderr
    assert Corpus(tmp_path / "dump").num_documents == 30
    assert unknown.returncode == 2
    assert "sample-10BT" in unknown.stderr
    assert "Traceback" not in unknown.stderr
