"""The fast backend is used where it is proven, and a difference never reaches a corpus."""

import json
import re
import shutil
from pathlib import Path

import pytest

import tokenization
from tests.preprocess.test_preprocess_restart import all_files, killed_behind
from tests.support.text import sample_documents
from tokenization import FastBackend
from tokenization.fast.form import FallbackTexts, fast_form
from toolkit.core.errors import UserError
from toolkit.preprocess import tokenizer_checks
from toolkit.preprocess.tokenizer_checks import proof_of
from toolkit.preprocess.writer import groups
from toolkit.preprocess.writer.begun import read_begun
from toolkit.preprocess.writer.groups import written_groups

pytestmark = pytest.mark.usefixtures("no_text_is_short")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """No proof is there; one that is made here looks at the lower characters alone, which takes no seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenization.fast.backend.sample_characters", lambda: map(chr, range(1, 0x1000)))
    return tmp_path / "cache" / "encoder-pretraining-toolkit"


@pytest.fixture
def source(write_jsonl):
    """Plain documents first, later some with the words on which the faulty backend differs."""
    plain = [f"{number} xyz 0123456789" for number in range(40)]
    return write_jsonl("a.jsonl", plain + [f"{number} {text}" for number in range(80) for text in sample_documents(40)])


@pytest.fixture
def sources(source, monkeypatch):
    """Two groups, of which the second is as the first one."""
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    return [source, shutil.copy(source, source.with_name("b.jsonl"))]


@pytest.fixture
def faulty(monkeypatch, cache):
    """gigatoken with a tokenizer.json that lacks one merge."""

    def open_faulty(tokenizer, *, characters=None, num_threads=None):
        content = json.loads(fast_form(tokenizer))
        lost = content["model"]["merges"].pop(0)
        del content["model"]["vocab"]["".join(lost)]
        content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "".join(lost) not in merge]
        return FastBackend(tokenizer, json.dumps(content).encode(), FallbackTexts([], []))

    monkeypatch.setattr(FastBackend, "open", open_faulty)


def test_both_engines_write_the_same_bytes(prepare, source, tmp_path):
    fast = prepare(source, output=tmp_path / "fast", shard_tokens=20_000)
    slow = prepare(source, output=tmp_path / "slow", shard_tokens=20_000, engine="reference")

    assert not fast.why_reference
    assert slow.why_reference == "asked for with --engine reference"
    assert all_files(tmp_path / "fast") == all_files(tmp_path / "slow")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_fast_backend_of_one_worker_has_no_threads(prepare, source, monkeypatch, workers):
    """In the command that begins a corpus, too, which tries it first."""
    opened, open_fast = [], FastBackend.open
    monkeypatch.setattr(
        FastBackend, "open", lambda *given, **named: opened.append(open_fast(*given, **named)) or opened[-1]
    )
    assert not prepare(source, workers=workers).why_reference
    assert [backend._is_shared for backend in opened] == [workers > 1]


def test_the_reference_asked_for_later_does_not_keep_shards_of_the_fast_encoder(prepare, sources, tmp_path):
    """`--engine reference` gives certainty, so what it keeps it has made."""
    output, given = tmp_path / "corpus", {"shard_tokens": 500}
    killed_behind(1, lambda: prepare(*sources, **given))
    with pytest.raises(UserError, match=r"--engine: the fast backend made \d+ finished shards, reference now"):
        prepare(*sources, engine="reference", **given)

    result = prepare(*sources, engine="reference", overwrite=True, **given)
    assert (bool(result.why_reference), result.num_kept_shards) == (True, 0)
    shutil.rmtree(output)
    killed_behind(1, lambda: prepare(*sources, engine="reference", **given))
    result = prepare(*sources, **given)
    assert result.why_reference == "asked for with --engine reference", "decided once, for all of the corpus"
    assert result.num_kept_shards > 0


def test_a_proof_is_kept_for_its_tokenizer_and_made_again_when_damaged(prepare, source, tokenizer_folder, cache):
    prepare(source)
    (kept,) = cache.iterdir()
    proof = proof_of(tokenization.load(tokenizer_folder))
    odd = proof.read()
    assert odd is not None

    assert proof_of(tokenization.load(tokenizer_folder, mask_token="token:r")).read() is None
    kept.write_bytes(kept.read_bytes()[:-5])
    assert proof.read() is None
    prepare(source, overwrite=True)
    assert proof.read() == odd


def test_other_ids_on_the_vocabulary_are_seen_before_the_start(prepare, source, tmp_path, faulty, cache):
    result = prepare(source)
    prepare(source, output=tmp_path / "expected", engine="reference")

    assert "the fast backend differs: token" in result.why_reference
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "expected")
    assert not cache.exists(), "nothing is proven"


def test_other_ids_on_the_input_are_seen_before_the_start(prepare, source, tokenizer_folder, faulty, capsys):
    proof_of(tokenization.load(tokenizer_folder)).write([])

    assert "the fast backend differs: token" in prepare(source).why_reference
    assert "Starting over" not in capsys.readouterr().out


def test_other_ids_met_at_work_start_the_corpus_again_with_the_reference(
    prepare, source, tmp_path, tokenizer_folder, faulty, monkeypatch, capsys
):
    proof_of(tokenization.load(tokenizer_folder)).write([])
    monkeypatch.setattr(tokenizer_checks, "_TRIAL_CHARACTERS", 100)
    given = {"shard_tokens": 500, "holdout": 0.2}
    prepare(source, output=tmp_path / "expected", engine="reference", **given)
    result = prepare(source, **given)

    assert re.search(r"Starting over, \d finished shards? removed: the fast backend differs", capsys.readouterr().out)
    assert result.why_reference
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "expected")


def test_a_run_that_started_again_and_was_cut_off_goes_on_with_the_reference(
    prepare, sources, tmp_path, tokenizer_folder, faulty, monkeypatch
):
    proof_of(tokenization.load(tokenizer_folder)).write([])
    monkeypatch.setattr(tokenizer_checks, "_TRIAL_CHARACTERS", 100)
    prepare(*sources, output=tmp_path / "expected", engine="reference", shard_tokens=500)
    # The first one is begun with the fast backend, too.
    killed_behind(2, lambda: prepare(*sources, shard_tokens=500))
    assert read_begun(tmp_path / "corpus").why_reference.startswith("the fast backend differs")
    written = written_groups(tmp_path / "corpus")
    assert list(written) == [0]

    assert prepare(*sources, shard_tokens=500).num_kept_shards == len(written[0].shards)
    assert all_files(tmp_path / "corpus") == all_files(tmp_path / "expected")


def _with_configuration(folder: Path, source: Path, **config: object) -> str:
    shutil.copytree(source, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return str(folder)


def test_ids_that_megatron_would_write_otherwise_are_told_once_compared(
    prepare, source, tokenizer_folder, tmp_path, capsys, cache, monkeypatch
):
    told = "AutoTokenizer gives other ids for"
    named = _with_configuration(tmp_path / "named", tokenizer_folder, tokenizer_class="GPT2Tokenizer")
    other = _with_configuration(
        tmp_path / "other", tokenizer_folder, tokenizer_class="GPT2Tokenizer", add_prefix_space=True
    )
    prepare(source, output=tmp_path / "same", tokenizer=named)
    assert told not in capsys.readouterr().out
    prepare(source, output=tmp_path / "differ", tokenizer=other)
    assert told in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(tokenizer_checks, "transformers_differences", None)
    prepare(source, output=tmp_path / "again", tokenizer=other)
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_tokenizer_that_the_toolkit_wrote_is_not_compared(prepare, source, monkeypatch):
    monkeypatch.setattr(tokenizer_checks, "transformers_differences", None)
    prepare(source)


@pytest.mark.parametrize(("num_texts", "is_fast"), [(9, False), (10, True)])
def test_the_fast_backend_is_not_opened_for_a_short_text(prepare, write_jsonl, monkeypatch, num_texts, is_fast):
    monkeypatch.setattr(tokenizer_checks, "_SHORT_CHARACTERS", 100)
    result = prepare(write_jsonl("a.jsonl", ["0123456789"] * num_texts))

    assert (not result.why_reference) == is_fast
    assert result.why_reference == ("" if is_fast else "the text is short")
