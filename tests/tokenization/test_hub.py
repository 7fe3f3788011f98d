"""Tokenizers by the id of a hub repository: the real client, over HTTP, against a hub on the loopback."""

import json
import os
from pathlib import Path

import pytest

import tokenization
from tests.support.apart import run_apart
from tests.support.hub_server import HubServer

SCRIPT = """
import json, sys, tokenization
try:
    tokenizer = tokenization.load(sys.argv[1])
except tokenization.TokenizationError as error:
    print(json.dumps({"error": str(error)}))
else:
    found = {"fingerprint": tokenizer.fingerprint, "eod": tokenizer.eod_id, "kind": tokenizer.kind}
    print(json.dumps({**found, "source": tokenizer.source}))
"""


class Hub:
    """A root folder with repositories, a cache, and a child process that loads from them."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "hub", folder / "cache"
        (self.root / "models").mkdir(parents=True)
        self.root.joinpath("datasets").mkdir()

    def repository(self, name: str, files: dict[str, bytes]) -> None:
        folder = self.root / "models" / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)

    def load(self, name: str, *, endpoint: str, cwd: Path | None = None, **variables: str) -> dict[str, object]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(self.cache), "PYTHONPATH": os.getcwd(), **variables}
        finished = run_apart("-c", SCRIPT, name, folder=cwd or self.root, environment=environment)
        assert finished.returncode == 0, finished.stderr
        found: dict[str, object] = json.loads(finished.stdout)
        return found


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path)


@pytest.fixture
def trained_files(trained):
    return {path.name: path.read_bytes() for path in trained.iterdir()}


def test_a_repository_is_read_with_its_names_and_again_from_the_cache(hub, trained, trained_files):
    hub.repository("org/small", {**trained_files, "README.md": b"x", "model.safetensors": bytes(2 << 20)})
    expected = tokenization.load(trained)

    with HubServer(hub.root) as server:
        found = hub.load("org/small", endpoint=server.endpoint)
        assert server.bytes_sent("safetensors") == 0
        source = f"org/small@{server.commit_of('models/org/small')}"
        endpoint = server.endpoint
    without_network = hub.load("org/small", endpoint=endpoint)
    offline = hub.load("org/small", endpoint=endpoint, HF_HUB_OFFLINE="1")

    assert found == {"fingerprint": expected.fingerprint, "eod": 0, "kind": "huggingface", "source": source}
    assert without_network == offline == found


def test_a_repository_without_tokenizer_json_may_hold_another_kind(hub, ranks_file, make_model):
    hub.repository("org/ranks", {"tokenizer.model": ranks_file.read_bytes()})
    hub.repository("org/pieces", {"spiece.model": make_model(model_type="unigram").read_bytes()})

    with HubServer(hub.root) as server:
        assert hub.load("org/ranks", endpoint=server.endpoint)["kind"] == "tiktoken"
        assert hub.load("org/pieces", endpoint=server.endpoint)["kind"] == "sentencepiece"


def test_a_gated_repository_says_so_and_opens_with_a_token(hub, trained_files):
    hub.repository("org/gated", trained_files)

    with HubServer(hub.root) as server:
        server.lock("models/org/gated", "hf_right")
        without = hub.load("org/gated", endpoint=server.endpoint)
        wrong = hub.load("org/gated", endpoint=server.endpoint, HF_TOKEN="hf_wrong")
        right = hub.load("org/gated", endpoint=server.endpoint, HF_TOKEN="hf_right")

    assert "tokenizer org/gated: it is gated, and no token is set. Accept its terms" in str(without["error"])
    assert "the token in use has no access" in str(wrong["error"])
    assert right["eod"] == 0


def test_what_is_missing_is_named(hub):
    hub.repository("org/empty", {"config.json": b"{}"})

    with HubServer(hub.root) as server:
        missing = hub.load("org/nowhere", endpoint=server.endpoint)
        empty = hub.load("org/empty", endpoint=server.endpoint)

    assert "has no repository of this name, or it is private and no token is set" in str(missing["error"])
    assert "no file, folder or shipped spec of that name here" in str(missing["error"])
    assert "'org/empty' has no tokenizer.json, no vocab.json with merges.txt and no single model" in str(empty["error"])


def test_without_a_network_it_says_what_helps(hub):
    unreachable = hub.load("org/small", endpoint="http://127.0.0.1:9")
    offline = hub.load("org/small", endpoint="http://127.0.0.1:9", HF_HUB_OFFLINE="1")

    assert "is not in the cache" in str(unreachable["error"])
    assert "http://127.0.0.1:9 cannot be reached" in str(unreachable["error"])
    assert "HF_HUB_OFFLINE is set" in str(offline["error"])


def test_a_dropped_connection_is_got_over(hub, trained, trained_files):
    hub.repository("org/small", trained_files)

    with HubServer(hub.root) as server:
        server.break_next("resolve-cache", drop_after=1000)
        server.break_next("tokenizer_config", status=503, retry_after=0)
        found = hub.load("org/small", endpoint=server.endpoint)

    assert found.get("fingerprint") == tokenization.load(trained).fingerprint, found


def test_the_shipped_spec_takes_its_ranks_from_the_hub_and_knows_them(hub, ranks_file):
    hub.repository("meta-llama/Meta-Llama-3-8B", {"original/tokenizer.model": ranks_file.read_bytes()})

    with HubServer(hub.root) as server:
        found = hub.load("llama3", endpoint=server.endpoint)
        server.lock("models/meta-llama/Meta-Llama-3-8B", "hf_right")
        gated = hub.load("llama3", endpoint=server.endpoint, HF_HOME=str(hub.cache / "other"))

    assert "original/tokenizer.model is not the rank file that the tokenizer spec llama3 means" in str(found["error"])
    assert "is gated" in str(gated["error"])
    assert 'scheme = "llama3"' in str(gated["error"])


def test_a_file_here_comes_before_a_repository(hub, trained, trained_files, tmp_path):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "small").symlink_to(trained)

    found = hub.load("org/small", endpoint="http://127.0.0.1:9", cwd=tmp_path)

    assert found["fingerprint"] == tokenization.load(trained).fingerprint


def test_a_revision_can_be_named_and_its_commit_is_kept(hub, trained, trained_files, tmp_path):
    other = trained_files["tokenizer_config.json"].replace(b'"mask_token": "<|mask|>"', b'"sep_token": "<|mask|>"')
    hub.repository("org/small", trained_files)
    hub.repository("org/small@v2", {**trained_files, "tokenizer_config.json": other})

    with HubServer(hub.root) as server:
        main, old = (server.commit_of("models/org/small", name) for name in ("main", "v2"))
        newest, by_tag, by_commit = (
            hub.load(name, endpoint=server.endpoint) for name in ("org/small", "org/small@v2", f"org/small@{old}")
        )
        missing = hub.load("org/small@v3", endpoint=server.endpoint)

    assert newest["source"] == f"org/small@{main}"
    assert by_tag == by_commit
    assert by_tag["source"] == f"org/small@{old}"
    assert by_tag["fingerprint"] != newest["fingerprint"]
    assert "the repository exists, but not this revision" in str(missing["error"])


def test_a_saved_folder_keeps_where_its_tokenizer_comes_from(trained, tmp_path):
    tokenizer = tokenization.load(trained)
    tokenizer.source = "org/small@0123"
    tokenizer.save(tmp_path / "saved")

    assert tokenization.load(tmp_path / "saved").source == "org/small@0123"
