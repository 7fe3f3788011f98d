"""A thousand mutated files for every reader of a corpus: read, or refused with a CorpusError; nothing else."""

import hashlib
import json
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.mutations import mutated, mutated_tree
from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, DataSettings, Shard, open_rows, read_manifest, verify_corpus, write_manifest
from toolkit.data.corpus.shard_table import ShardTable
from toolkit.data.rows.plan import PlanKey, is_intact, is_whole, map_plan, read_sizes, write_plan
from toolkit.data.rows.plan_summary import PlanTable, SummaryKey, is_summary_whole, read_summary, write_summary
from toolkit.testing.corpora import random_documents, write_token_corpus

DOCUMENTS = random_documents(40, vocabulary_size=50)
NUM_MUTATIONS = 1000
SEED = 0


@pytest.fixture(autouse=True)
def _bounded_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A count that is believed before it is checked against the file would ask for far more than this."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # a thousand times
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_token_corpus(tmp_path / "corpus", DOCUMENTS, vocabulary_size=52, shards=2, eos=1, mask=51)


def _use(folder: Path) -> str:
    """Open a corpus and read rows as training does; what comes of it."""
    try:
        opened = Corpus(folder)
        for windows in ("blocks", "documents"):
            settings = DataSettings(train=str(folder), sequence_length=32, windows=windows)
            rows = open_rows(opened, settings, seed=0)
            read = rows.read(np.arange(rows.num_rows), np.zeros(rows.num_rows, np.int64))
            assert read.tokens_BS.max() < opened.vocabulary.size
    except CorpusError as error:
        is_named = str(folder.parent) in str(error) or ".bin" in str(error)
        return "refused" if is_named else f"refused without a name: {error}"
    return "read"


def _outcomes(mutate: Callable[[np.random.Generator], None], use: Callable[[], str]) -> Counter[str]:
    generator, found = np.random.default_rng(SEED), Counter[str]()
    for _ in range(NUM_MUTATIONS):
        mutate(generator)
        found[use()] += 1
    assert set(found) <= {"read", "refused"}, found
    return found


def test_corpus_json_of_random_bytes(corpus: Path) -> None:
    path = corpus / "corpus.json"
    intact = path.read_bytes()
    found = _outcomes(lambda generator: path.write_bytes(mutated(intact, generator)), lambda: _use(corpus))
    # A change may undo another, or change nothing.
    assert found["refused"] > 0.9 * NUM_MUTATIONS


def test_corpus_json_that_says_what_cannot_be(corpus: Path) -> None:
    """With the right hash, so that its content is believed as far as it makes sense."""
    path = corpus / "corpus.json"
    intact = json.loads(path.read_bytes())
    del intact["manifest_sha256"]

    def mutate(generator: np.random.Generator) -> None:
        indent = 1 if generator.random() < 0.8 else None
        text = (json.dumps(mutated_tree(intact, generator), indent=indent)[:-1].rstrip() + "\n}\n").encode()
        end = b',\n "manifest_sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'
        path.write_bytes(text[:-3] + end)

    def use() -> str:
        verify_corpus(corpus)
        return _use(corpus)

    found = _outcomes(mutate, use)
    assert found["refused"] > 0.5 * NUM_MUTATIONS
    assert found["read"] > 0


def test_corpus_json_is_verified_without_a_traceback(corpus: Path) -> None:
    path = corpus / "corpus.json"
    intact = path.read_bytes()

    def verify() -> str:
        return "refused" if verify_corpus(corpus).damaged else "read"

    found = _outcomes(lambda generator: path.write_bytes(mutated(intact, generator)), verify)
    assert found["refused"] > 0.9 * NUM_MUTATIONS


def test_indices(corpus: Path) -> None:
    path = corpus / "shard-00001.idx"
    intact, prefix = path.read_bytes(), corpus / "shard-00001"

    def use() -> str:
        try:
            shard = Shard(prefix)
            documents = [shard.document(number) for number in range(shard.num_documents)]
        except CorpusError as error:
            return "refused" if "shard-00001" in str(error) else f"refused without a name: {error}"
        assert sum(document.size for document in documents) <= shard.num_tokens
        return "read"

    found = _outcomes(lambda generator: path.write_bytes(mutated(intact, generator)), use)
    assert found["refused"] > 0.8 * NUM_MUTATIONS


def test_indices_that_the_manifest_vouches_for(corpus: Path) -> None:
    path, manifest = corpus / "shard-00001.idx", read_manifest(corpus)
    intact = path.read_bytes()

    def mutate(generator: np.random.Generator) -> None:
        content = mutated(intact, generator)
        path.write_bytes(content)
        first, second = manifest.shards
        changed = replace(second, sha256_idx=hashlib.sha256(content).hexdigest())
        write_manifest(corpus, manifest.model_copy(update={"shards": ShardTable([first, changed])}))

    assert _outcomes(mutate, lambda: _use(corpus))["refused"] > 0.8 * NUM_MUTATIONS


def test_plans(tmp_path: Path) -> None:
    key, path = PlanKey("ab" * 32, 64, 4), tmp_path / "plan"
    write_plan(path, key, document_lengths=np.random.default_rng(0).integers(0, 300, 30))
    intact = path.read_bytes()

    def use() -> str:
        sizes = read_sizes(path, key)
        is_whole(path)
        if sizes is None or not is_intact(path, key):
            return "refused"
        map_plan(path, sizes)
        return "read"

    found = _outcomes(lambda generator: path.write_bytes(mutated(intact, generator)), use)
    assert found["refused"] > 0.9 * NUM_MUTATIONS


def test_damaged_plans_are_made_again(corpus: Path) -> None:
    assert _use(corpus) == "read"
    (path,) = corpus.glob("shard-00001.plan-*")
    intact, generator = path.read_bytes(), np.random.default_rng(1)
    for _ in range(30):
        path.write_bytes(mutated(intact, generator))
        assert _use(corpus) == "read"
        assert path.read_bytes() == intact


def test_summaries(tmp_path: Path) -> None:
    key, path = SummaryKey("ab" * 32, 20, 64, 12), tmp_path / "summary"
    numbers = np.arange(20)
    write_summary(path, key, PlanTable(numbers, numbers, numbers))
    intact = path.read_bytes()

    def use() -> str:
        whole, found = is_summary_whole(path), read_summary(path, key)
        assert whole or found is None
        return "refused" if found is None else "read"

    found = _outcomes(lambda generator: path.write_bytes(mutated(intact, generator)), use)
    assert found["refused"] > 0.9 * NUM_MUTATIONS
