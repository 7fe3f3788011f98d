"""`toolkit tokenizer train`: from sources of every format to a tokenizer that preprocess takes."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenization
from tests.support.apart import run_apart
from tests.support.text import sample_documents
from toolkit.data import Corpus


@pytest.fixture
def sources(tmp_path):
    """200 documents: 50 in each of four formats, and three rows without a text."""
    documents = sample_documents(200)
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in documents[:100]]
    (folder / "a.jsonl").write_text("".join([*lines[:50], "{broken\n", '{"text": ""}\n', '{"other": 1}\n']))
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines[50:])
    pq.write_table(pa.table({"text": documents[100:150]}), folder / "c.parquet")
    for number, text in enumerate(documents[150:]):
        (folder / f"d{number:02}.txt").write_text(text, encoding="utf-8", newline="")
    return folder


def test_it_is_trained_on_the_texts_of_all_formats_and_used_by_preprocess(toolkit, sources, tmp_path):
    made, corpus = tmp_path / "made", tmp_path / "corpus"
    code, out, err = toolkit("tokenizer", "train", sources, "--vocab-size", 400, "--output", made)

    assert (code, err) == (0, "")
    tokenization.train_bpe(sample_documents(200), vocabulary_size=400, folder=tmp_path / "expected")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (made / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert "400 ids; " in out
    assert "from 200 documents" in out
    assert "skipped: 1 rows, broken JSON" in out
    assert "skipped: 1 rows, missing field" in out
    assert f"toolkit preprocess {sources} --tokenizer {made} --output data/corpus" in out

    words = ["--tokenizer", made, "--output", corpus, "--max-bad-fraction", "0.1", "--engine", "reference"]
    code, _, err = toolkit("preprocess", sources, *words)
    assert (code, err) == (0, "")
    assert Corpus(corpus).num_documents == 200


def test_reading_stops_at_the_limit(toolkit, sources, tmp_path):
    words = ["--vocab-size", 300, "--output", tmp_path / "made", "--limit-documents", 7]
    code, out, _ = toolkit("tokenizer", "train", sources, *words)

    assert code == 0
    assert "from 7 documents" in out


def test_a_source_without_a_text_is_named_unless_the_limit_comes_first(toolkit, sources, tmp_path):
    (sources / "e.jsonl").write_text('{"content": "a"}\n' * 3)
    words = ["tokenizer", "train", sources, "--vocab-size", 300, "--output", tmp_path / "made"]

    code, _, err = toolkit(*words)
    assert (code, "source" in err, "e.jsonl gives no document: 3 rows missing field" in err) == (2, True, True)
    assert f"--exclude {sources / 'e.jsonl'}" in err
    assert toolkit(*words, "--limit-documents", 200)[0] == 0


def test_little_text_gives_fewer_ids_and_says_so(toolkit, tmp_path):
    (tmp_path / "a.txt").write_text("abc abc\n\nxyz", encoding="utf-8")
    words = ["--vocab-size", 5000, "--output", tmp_path / "made", "--txt-documents", "paragraph"]
    code, out, _ = toolkit("tokenizer", "train", tmp_path / "a.txt", *words)

    assert code == 0
    assert "ids instead of 5,000: too little text" in out
    assert f"toolkit preprocess {tmp_path / 'a.txt'} --txt-documents paragraph --tokenizer" in out


def test_a_folder_in_use_is_not_overwritten_unasked(toolkit, sources, tmp_path):
    made = tmp_path / "made"
    words = ["tokenizer", "train", sources / "c.parquet", "--vocab-size", 300, "--output", made]
    assert toolkit(*words)[0] == 0

    code, _, err = toolkit(*words)
    assert (code, "holds a tokenizer" in err, "--overwrite" in err) == (2, True, True)
    assert toolkit(*words, "--overwrite")[0] == 0
    (made / "special_tokens_map.json").write_text("{}")
    code, _, err = toolkit(*words, "--overwrite")
    assert (code, "holds other files (special_tokens_map.json)" in err) == (2, True)


@pytest.mark.parametrize("words", [["tokenizer", "--help"], ["tokenizer", "train", "--help"], ["tokenizer"]])
def test_its_help_says_train(words):
    code = "import sys; sys.argv = ['toolkit', *sys.argv[1:]]; from toolkit.cli import main; main()"
    done = run_apart("-c", code, *words)

    assert "train" in done.stdout + done.stderr
    assert done.returncode == (0 if "--help" in words else 2)


def test_a_full_disk_leaves_no_half_a_tokenizer(monkeypatch, toolkit, sources, tmp_path):
    write_text = Path.write_text

    def full(path, content, **named):
        write_text(path, content[:10], **named)
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    words = ("tokenizer", "train", sources, "--vocab-size", 300, "--output", tmp_path / "out")
    code, _, err = toolkit(*words)
    assert code == 2
    assert "No space left on device" in err
    assert list((tmp_path / "out").iterdir()) == []
