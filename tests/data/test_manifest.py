"""corpus.json: what it says, and that any change to it is noticed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from toolkit.core.errors import CorpusError
from toolkit.data import CorpusManifest, ShardEntry, read_manifest, write_manifest
from toolkit.testing.corpora import write_token_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    documents = [np.arange(3), np.arange(5), np.arange(7)]
    return write_token_corpus(tmp_path / "corpus", documents, vocabulary_size=10, shards=2, eos=9, mask=8)


def test_it_says_what_is_in_the_folder(corpus: Path) -> None:
    content = json.loads((corpus / "corpus.json").read_text())
    assert list(content) == [
        "documents", "tokens", "dtype", "toolkit_version", "tokenizer", "tokenizer_files", "special_text_hits",
        "skipped", "shards", "manifest_sha256",
    ]  # fmt: skip
    assert (content["documents"], content["tokens"], content["dtype"]) == (3, 15, "uint16")
    assert content["tokenizer"]["special_ids"] == {"bos": None, "eos": 9, "pad": None, "mask": 8}
    assert content["tokenizer"]["all_special_ids"] == [8, 9]
    assert [(shard["name"], shard["documents"], shard["tokens"]) for shard in content["shards"]] == [
        ("shard-00000", 1, 3),
        ("shard-00001", 2, 12),
    ]
    for shard in content["shards"]:
        for ending in ("bin", "idx"):
            data = (corpus / f"{shard['name']}.{ending}").read_bytes()
            assert shard[f"sha256_{ending}"] == hashlib.sha256(data).hexdigest()


def test_its_hash_is_that_of_the_file_without_the_hash(corpus: Path) -> None:
    text = (corpus / "corpus.json").read_text()
    start = text.index(',\n "manifest_sha256"')
    digest = json.loads(text)["manifest_sha256"]
    assert hashlib.sha256((text[:start] + "\n}\n").encode()).hexdigest() == digest


def test_what_is_read_is_written_again_byte_for_byte(corpus: Path) -> None:
    before = (corpus / "corpus.json").read_bytes()
    manifest = read_manifest(corpus)
    assert write_manifest(corpus, manifest) == manifest
    assert (corpus / "corpus.json").read_bytes() == before


def test_every_changed_byte_is_noticed(corpus: Path) -> None:
    path = corpus / "corpus.json"
    intact = path.read_bytes()
    for position in range(0, len(intact), 7):
        path.write_bytes(intact[:position] + bytes([intact[position] ^ 1]) + intact[position + 1 :])
        with pytest.raises(CorpusError, match=r"corpus\.json is damaged"):
            read_manifest(corpus)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]\n", b"\xff\xfe", b'{"manifest_sha256": "0"}\n', b"[" * 100_000])
def test_another_file_is_refused(corpus: Path, text: bytes) -> None:
    (corpus / "corpus.json").write_bytes(text)
    with pytest.raises(CorpusError, match=r"corpus\.json is damaged"):
        read_manifest(corpus)


def test_sums_that_do_not_agree_are_refused(corpus: Path) -> None:
    write_manifest(corpus, read_manifest(corpus).model_copy(update={"tokens": 16}))
    with pytest.raises(CorpusError, match="tokens is 16, but the shards hold 15"):
        read_manifest(corpus)


@pytest.mark.parametrize("num_shards", [1, 2, 1023, 1024, 1025, 2049])
def test_any_number_of_shards_is_read_as_it_was_written(tmp_path: Path, num_shards: int) -> None:
    """Entries are read a thousand at a time; names and sources hold what JSON has to escape."""
    base = read_manifest(write_token_corpus(tmp_path / "base", [np.arange(3)], vocabulary_size=10))
    entries = tuple(
        ShardEntry(f'sh "{n}"  }},  {{ \\ü', n, 3 * n, f"{n:064x}", f"{n + 1:064x}", f"ü\\\t{n}\n ]")
        for n in range(num_shards)
    )
    total = num_shards * (num_shards - 1) // 2
    update = {"shards": entries, "documents": total, "tokens": 3 * total}
    written = write_manifest(tmp_path, CorpusManifest.model_validate({**dict(base), **update}))
    found = read_manifest(tmp_path)
    assert found == written
    assert found.shards == entries
    assert (found.shards[-1], list(found.shards[:2])) == (entries[-1], list(entries[:2]))
    assert found.table.names == [entry.name for entry in entries]
    assert found.table.tokens.tolist() == [entry.tokens for entry in entries]
    assert found.table.sha256_idx(num_shards - 1) == f"{num_shards:064x}"


def test_another_layout_of_the_same_content_is_read_too(corpus: Path) -> None:
    """What other programs write: compact entries, other indents; only the end with the hash is fixed."""
    expected = read_manifest(corpus)
    content = json.loads((corpus / "corpus.json").read_text())
    del content["manifest_sha256"]
    for text in (json.dumps(content)[:-1] + "\n}\n", json.dumps(content, indent=3)[:-2] + "\n}\n"):
        digest = hashlib.sha256(text.encode()).hexdigest()
        (corpus / "corpus.json").write_text(text[:-3] + f',\n "manifest_sha256": "{digest}"' + "\n}\n")
        found = read_manifest(corpus)
        assert found.shards == expected.shards
        assert found.tokenizer == expected.tokenizer


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"documents": 2', '"documents": 2.0', "shards.1.documents"),
        ('"documents": 2', '"documents": -2', "shards.1.documents"),
        ('"documents": 2', f'"documents": {2**63}', "shards.1.documents"),
        ('"name": "shard-00001"', '"name": "shard-00000"', "two shards have the same name"),
        ('"name": "shard-00001"', '"name": ""', "shards.1.name"),
        ('"name": "shard-00001"', '"name": "a\\u0000b"', "shards.1.name"),
        ('"name": "shard-00001"', '"name": "../shard-00001"', "shards.1.name: expected a printable name inside"),
        ('"name": "shard-00001"', '"name": "/a/../shard-00001"', "shards.1.name"),
        ('"tokenizer.json": ', '"/a": ', "expected the printable name"),
        ('"source": "made up"', '"sauce": "made up"', "shards.0.source"),
        ('"dtype": "uint16"', '"dtype": "uint32"', "dtype"),
        ('"shards": [', '"shards": [1,', "shards.0"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(corpus: Path, old: str, new: str, message: str) -> None:
    """Each with the right hash, so that only the meaning is wrong."""
    text = (corpus / "corpus.json").read_text()
    assert old in text
    text = text[: text.index(',\n "manifest_sha256"')].replace(old, new, 1) + "\n}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    (corpus / "corpus.json").write_text(text[:-3] + f',\n "manifest_sha256": "{digest}"' + "\n}\n")
    with pytest.raises(CorpusError, match=rf"does not describe a corpus: .*{message}"):
        read_manifest(corpus)
