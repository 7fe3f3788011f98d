"""`toolkit verify`: every damaged byte of every file is named, all of them at once; unexpected files are listed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, DataSettings, open_rows, verify_corpus
from toolkit.testing.corpora import random_documents, write_token_corpus


def _write(folder: Path, *, seed: int) -> Path:
    """Two shards with packing plans for two lengths of rows."""
    documents = random_documents(60, vocabulary_size=100, seed=seed)
    write_token_corpus(folder, documents, vocabulary_size=100, shards=2, eos=0)
    for sequence_length in (32, 64):
        open_rows(Corpus(folder), DataSettings(train=str(folder), sequence_length=sequence_length), seed=0)
    return folder


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with plans, their summary and a corpus held out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.data.rows.plan_store._FEWEST_SHARDS_SUMMARISED", 2)
        folder = _write(tmp_path_factory.mktemp("intact") / "corpus", seed=0)
        _write(folder / "holdout", seed=1)
    return folder


@pytest.fixture
def corpus(intact: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact, tmp_path / "corpus")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def _flip(path: Path, position: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)


def test_a_corpus_as_it_was_written(corpus: Path) -> None:
    found = verify_corpus(corpus)
    assert (found.damaged, found.unexpected_files) == ((), ())
    # corpus.json, 2 pairs, 4 plans, 2 summaries, 2 files of the tokenizer; twice.
    assert found.num_files == len(_files(corpus)) == 2 * (1 + 4 + 4 + 2 + 2)
    num_manifests = sum(path.stat().st_size for path in corpus.rglob("corpus.json"))
    assert found.num_bytes == sum(path.stat().st_size for path in _files(corpus)) - num_manifests
    assert str(found).startswith(f"{corpus} is intact: 26 files, ")


def test_a_flipped_bit_at_any_place_of_any_file_is_named(corpus: Path) -> None:
    generator = np.random.default_rng(0)
    for path in _files(corpus):
        content = path.read_bytes()
        places = {0, len(content) - 1, *generator.integers(0, len(content), 12).tolist()}
        for position in sorted(places):
            _flip(path, position, bits=int(generator.integers(1, 256)))
            damaged = {finding.path for finding in verify_corpus(corpus).damaged}
            # A damaged corpus.json accuses others too; any other file stands alone.
            assert path in damaged
            assert path.name == "corpus.json" or damaged == {path}
            path.write_bytes(content)
    assert verify_corpus(corpus).damaged == ()


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "gone", "folder"])
def test_files_that_are_cut_or_gone_are_named(corpus: Path, change: str) -> None:
    for path in _files(corpus):
        if change == "gone" and (".plan-" in path.name or path.name.startswith("plans-")):
            continue  # made again
        content = path.read_bytes()
        path.unlink()
        if change == "folder":
            path.mkdir()
        elif change != "gone":
            path.write_bytes({"shorter": content[:-1], "longer": content + b"\n", "empty": b""}[change])
        if path == corpus / "corpus.json" and change == "gone":
            with pytest.raises(CorpusError, match=r"has no corpus\.json"):
                verify_corpus(corpus)
        else:
            assert path in {finding.path for finding in verify_corpus(corpus).damaged}, path
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_all_damaged_files_are_named_at_once(corpus: Path) -> None:
    damaged = [path for path in _files(corpus) if path.name != "corpus.json"]
    for path in damaged:
        _flip(path, path.stat().st_size // 2)
    found = verify_corpus(corpus)
    assert sorted(finding.path for finding in found.damaged) == damaged
    assert all(str(path) in str(found) for path in damaged)


def test_damage_to_corpus_json_does_not_hide_other_damage(corpus: Path) -> None:
    """As long as it can be read: here a digit of a count is wrong, and a shard of the other corpus."""
    text = (corpus / "corpus.json").read_bytes()
    _flip(corpus / "corpus.json", text.index(b'"special_text_hits": 0') + len(b'"special_text_hits": '))
    _flip(corpus / "shard-00001.bin", 5)
    _flip(corpus / "holdout" / "shard-00000.idx", 50)
    found = {finding.path.relative_to(corpus).as_posix(): finding.what for finding in verify_corpus(corpus).damaged}
    assert set(found) == {"corpus.json", "shard-00001.bin", "holdout/shard-00000.idx"}
    assert "what it says of other files may be wrong" in found["corpus.json"]


def test_what_does_not_belong_is_said_and_is_no_damage(corpus: Path) -> None:
    (corpus / "notes.txt").write_text("mine")
    (corpus / "shard-00002.bin").write_bytes(b"\x00\x00")
    (corpus / ".shard-00002.bin.partial").write_bytes(b"\x00")
    (corpus / "tokenizer" / "added_tokens.json").write_text("{}")
    (corpus / "folder").mkdir()
    stale = next(corpus.glob("shard-00000.plan-S32*"))
    shutil.copy(stale, corpus / f"{stale.name[:-1]}{'0' if stale.name[-1] != '0' else '1'}")
    (corpus / ".plans.lock").touch()
    (corpus / "self").symlink_to(corpus)
    found = verify_corpus(corpus)
    assert found.damaged == ()
    assert len(found.unexpected_files) == 7
    assert {path.name for path in found.unexpected_files} > {
        "notes.txt",
        "shard-00002.bin",
        "added_tokens.json",
        "self",
    }


def test_no_corpus_is_no_damage(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CorpusError, match="no corpus at"):
            verify_corpus(folder)


def test_the_command(toolkit, corpus: Path) -> None:
    (corpus / "notes.txt").write_text("mine")
    code, out, err = toolkit("verify", corpus)
    assert (code, err) == (0, "")
    assert f"{corpus / 'notes.txt'} does not belong to the corpus" in out
    assert out.endswith("MB.\n")
    _flip(corpus / "shard-00001.bin", 3)
    _flip(corpus / "tokenizer" / "tokenizer.json", 3)
    code, out, err = toolkit("verify", corpus)
    assert code == 2
    assert err.startswith(f"error: 2 of 26 files of {corpus} are damaged or missing:\n")
    assert f"{corpus / 'shard-00001.bin'}: its SHA-256 is " in err
    assert f"{corpus / 'tokenizer' / 'tokenizer.json'}: its SHA-256 is " in err
    assert toolkit("verify", corpus / "tokenizer")[0] == 2
