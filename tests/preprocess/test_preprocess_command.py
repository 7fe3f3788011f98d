import os
import shlex
import time

import fsspec
import pytest

from tests.support.text import sample_documents
from toolkit.preprocess.summary import corpus_ending
from toolkit.run.toml_files import apply_override


def test_preprocess_then_inspect(toolkit, write_jsonl, tokenizer_folder, tmp_path):
    source = write_jsonl("a.jsonl", [*sample_documents(200), "a <|mask|> b", b"{"])
    code, out, _ = toolkit(
        "preprocess", source, "--tokenizer", tokenizer_folder, "--output", tmp_path / "c", "--sequence-length", 128
    )

    assert code == 0
    for part in (
        "documents          201",
        "<|endoftext|> (id 0)",
        "<|mask|> (id 2), named by the tokenizer",
        "128 tokens",
        "bad rows           a.jsonl: 1 row broken JSON (first row 202:",
        "documents/s",
        "MB/s",
        "tokens/s",
        "special tokens inside the text: 1, read as these tokens",
    ):
        assert part in out
    assert f"toolkit inspect {tmp_path / 'c'}" in out

    code, out, _ = toolkit("inspect", tmp_path / "c", "--rows", 1, "--set", "data.sequence_length=32")
    assert code == 0
    for part in ("201 in 1 shard", "Length of documents", "####", "rows of 32 tokens", "Row 0: 32 tokens", "[1] "):
        assert part in out
    assert "Row 1" not in out


def test_tokens_that_no_row_gets_are_said(toolkit, write_jsonl, tokenizer_folder, tmp_path):
    """D5: texts of one word, 3 tokens each, are all shorter than data.min_length; the one long text is not."""
    source = write_jsonl("a.jsonl", ["q" * 40, *["qq"] * 100])
    place = ("--tokenizer", tokenizer_folder, "--output", tmp_path / "c")
    code, out, _ = toolkit("preprocess", source, *place, "--sequence-length", 64)
    said = f"41 of 341 tokens of {tmp_path / 'c'} are in rows (12.0%): data.min_length=12 drops shorter documents"
    assert code == 0
    assert said in out

    code, out, _ = toolkit("inspect", tmp_path / "c", "--set", "data.sequence_length=64")
    assert code == 0
    assert said in out
    blocks = ("--set", "data.windows=blocks", "--set", "data.sequence_length=64")
    code, out, _ = toolkit("inspect", tmp_path / "c", *blocks)
    assert "320 of 341 tokens" in out
    assert "data.windows='blocks' drops what follows the last whole row of the shard" in out
    code, out, _ = toolkit("inspect", tmp_path / "c", "--set", "data.min_length=1", "--set", "data.sequence_length=64")
    assert "tokens of" not in out


def test_what_is_passed_over_is_said(toolkit, write_jsonl, tokenizer_folder, tmp_path):
    source = write_jsonl("a.jsonl", ["a"])
    code, out, _ = toolkit(
        "preprocess", source, "--tokenizer", tokenizer_folder / "tokenizer.json", "--output", tmp_path / "c"
    )
    assert code == 0
    assert "<|mask|> (id 2), named" in out

    (tmp_path / "bare.json").write_bytes((tokenizer_folder / "tokenizer.json").read_bytes())
    code, out, _ = toolkit(
        "preprocess",
        source,
        "--tokenizer",
        tmp_path / "bare.json",
        "--output",
        tmp_path / "d",
        "--eod",
        "<|endoftext|>",
    )
    assert code == 0
    assert "<mask> (id 384), appended to the vocabulary" in out
    assert "--mask-token token:<|mask|>" in out


def test_help_lists_the_options(toolkit):
    code, out, _ = toolkit("preprocess", "--help")

    assert code == 0
    for option in ("--tokenizer", "--txt-documents", "--mask-token", "--workers", "--holdout", "[default: 0.01]"):
        assert option in out


def test_the_command_that_is_proposed_can_be_pasted(toolkit, write_jsonl, tokenizer_folder, tmp_path):
    folder, adopted = tmp_path / "two words", tmp_path / "it's"
    source = write_jsonl("a.jsonl", sample_documents(20))

    for words in (
        ("preprocess", source, "--tokenizer", tokenizer_folder, "--output", folder),
        ("adopt", folder / "shard-00000", "--tokenizer", tokenizer_folder, "--output", adopted),
    ):
        code, out, _ = toolkit(*words)
        assert code == 0
        proposed = shlex.split(out.rpartition("Next:\n  toolkit ")[2].partition("\n")[0])
        assert proposed == ["inspect", str(words[-1])]
        assert toolkit(*proposed)[0] == 0


@pytest.mark.parametrize("place", ["2024", "2026-11-28", "[x]", "true", "'x'", "it's", "data/corpus", "s3://b/2024"])
def test_a_corpus_of_any_name_can_be_trained_on_as_proposed(place):
    *_, option, override = shlex.split(corpus_ending(place).splitlines()[-1])
    raw = {}
    apply_override(raw, override)
    assert (option, raw["data"]["train"].removeprefix("./")) == ("--set", place)


def test_a_corpus_in_object_storage_is_finished_once(toolkit, write_jsonl, tokenizer_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, url, later = write_jsonl("a.jsonl", sample_documents(20)), "memory://finished/corpus", time.time() + 60
    command = ["preprocess", source, "--tokenizer", tokenizer_folder, "--output", url]
    assert toolkit(*command)[0] == 0
    written = fsspec.filesystem("memory").modified("/finished/corpus/corpus.json")

    code, out, _ = toolkit(*command)
    assert (code, out.strip()) == (0, f"{url} is already finished: 20 documents, 2,102 tokens.")
    refused = [toolkit(*command, "--shard-tokens", 1000), toolkit(*command, "--overwrite")]
    os.utime(source, (later, later))
    refused.append(toolkit(*command))
    for code, _, err in refused:
        assert code == 2
        assert f"{url} holds a finished corpus" in err
    assert fsspec.filesystem("memory").modified("/finished/corpus/corpus.json") == written


@pytest.mark.parametrize(("share", "is_proposed"), [("0.3", True), ("0.000001", False)])
def test_a_holdout_without_documents_is_not_proposed(
    toolkit, write_jsonl, tokenizer_folder, tmp_path, share, is_proposed
):
    source = write_jsonl("a.jsonl", sample_documents(20))
    output = tmp_path / "corpus"
    code, out, _ = toolkit(
        "preprocess", source, "--tokenizer", tokenizer_folder, "--output", output, "--holdout", share
    )
    assert (code, "data.validation" in out.rpartition("Next:")[2]) == (0, is_proposed)
