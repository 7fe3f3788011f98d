"""Equal bytes whatever the number of workers; documents held out by hash; kills with both."""

import itertools
import json
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.preprocess.test_preprocess_restart import all_files, every_moment, go_on, in_turn, killed_behind
from tests.support.text import sample_documents
from toolkit.core.errors import UserError
from toolkit.data import Corpus
from toolkit.preprocess.encoding import ahead, is_held_out
from toolkit.preprocess.readers import lines
from toolkit.preprocess.writer import groups

pytestmark = pytest.mark.usefixtures("no_text_is_short")


@pytest.fixture
def sources(write_jsonl, tmp_path, monkeypatch):
    """Three files of two formats, of some dozen spans together."""
    monkeypatch.setattr(lines, "_SPAN_BYTES", 2000)
    rows = [row for text in sample_documents(60, seed=3) for row in (text, "", b"[]")]
    pq.write_table(pa.table({"text": list(sample_documents(80, seed=5))}), tmp_path / "b.parquet", row_group_size=7)
    return [write_jsonl("a.jsonl", rows), tmp_path / "b.parquet", write_jsonl("c.jsonl", rows[::-1])]


GIVEN = {"shard_tokens": 1500, "max_bad_fraction": 1.0}


@pytest.mark.parametrize("limits", [{}, {"limit_documents": 100}, {"limit_tokens": 5000}, {"holdout": 0.3}])
def test_the_bytes_do_not_depend_on_the_number_of_workers(prepare, sources, tmp_path, limits):
    for workers in (1, 2, 4):
        prepare(*sources, output=tmp_path / str(workers), workers=workers, **GIVEN, **limits)

    one = all_files(tmp_path / "1")
    assert len([name for name in one if name.endswith(".bin")]) > 3
    assert one == all_files(tmp_path / "2") == all_files(tmp_path / "4")


def test_the_bytes_do_not_depend_on_the_spans(prepare, sources, tmp_path, monkeypatch):
    for name, size in (("line", 1), ("few", 700), ("all", 1 << 30)):
        monkeypatch.setattr(lines, "_SPAN_BYTES", size)
        prepare(*sources, output=tmp_path / name, limit_documents=150, **GIVEN)

    assert unsampled(tmp_path / "line") == unsampled(tmp_path / "few") == unsampled(tmp_path / "all")
    assert Corpus(tmp_path / "all").num_documents == 150


def unsampled(folder: Path) -> dict[str, object]:
    """All files, without what corpus.json says of a sample: its span goes on behind a limit."""
    files = dict[str, object](all_files(folder))
    manifest = json.loads((folder / "corpus.json").read_text())
    del manifest["text"], manifest["manifest_sha256"]
    return {**files, "corpus.json": manifest}


def texts(folder: Path, tokenizer_folder: Path) -> list[str]:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    return [
        backend.decode(shard.document(number)[:-1].tolist())
        for shard in Corpus(folder).shards
        for number in range(shard.num_documents)
    ]


def test_the_holdout_takes_its_share_by_hash_and_shares_no_text(prepare, write_jsonl, tmp_path, tokenizer_folder):
    unique = [f"{text} {number}" for number, text in enumerate(itertools.islice(sample_documents(400, seed=1), 400))]
    doubled = unique + unique[::-1]  # every text twice, far apart
    result = prepare(write_jsonl("a.jsonl", doubled), holdout=0.25, shard_tokens=3000)

    kept, held_out = (texts(folder, tokenizer_folder) for folder in (tmp_path / "corpus", tmp_path / "corpus/holdout"))
    assert not set(kept) & set(held_out)
    assert sorted(kept + held_out) == sorted(doubled)
    assert kept == [text for text in doubled if not is_held_out(text, 0.25)]
    assert 60 <= len(set(held_out)) <= 140
    assert (result.manifest.documents, result.holdout.documents) == (len(kept), len(held_out))
    assert result.holdout.tokenizer == result.manifest.tokenizer
    assert {text for text in unique if is_held_out(text, 0.1)} < {text for text in unique if is_held_out(text, 0.25)}


def test_limits_count_held_out_documents_too(prepare, write_jsonl):
    sources = [write_jsonl(f"{number}.jsonl", list(sample_documents(15, seed=number))) for number in range(4)]
    result = prepare(*sources, holdout=0.5, limit_documents=40)

    assert result.manifest.documents + result.holdout.documents == 40
    assert result.holdout.documents > 5


def test_killed_at_any_write_with_a_holdout_it_ends_with_the_same_bytes(prepare, sources, tmp_path):
    # With the tokenizer's own backend: to open the other one takes a while, which is nothing of its writes.
    given = {**GIVEN, "holdout": 0.4, "shard_tokens": 4000, "limit_documents": 80, "workers": 2, "engine": "reference"}
    prepare(*sources, output=tmp_path / "whole", **given)
    expected, output = all_files(tmp_path / "whole"), tmp_path / "killed"
    copies = every_moment(lambda: prepare(*sources, output=output, **given), output, tmp_path / "copies")
    assert all_files(output) == expected
    shutil.rmtree(output)
    for _ in in_turn(copies, output):
        go_on(prepare, *sources, output=output, **given)
        assert all_files(output) == expected
    assert len(copies) > 20


def test_a_holdout_of_an_earlier_corpus_does_not_stay(prepare, sources, tmp_path):
    prepare(*sources, holdout=0.3, **GIVEN)
    assert (tmp_path / "corpus" / "holdout" / "corpus.json").exists()
    prepare(*sources, overwrite=True, **GIVEN)

    assert not (tmp_path / "corpus" / "holdout").exists()


def test_results_come_in_order_and_few_wait():
    running, most, lock, first_three = 0, 0, threading.Lock(), threading.Barrier(3)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if number < 3:
            first_three.wait(60)
        time.sleep(0.005 if number % 3 else 0.0)
        with lock:
            running -= 1
        return number * number

    taken = iter(range(40))
    results = ahead(taken, work, num_workers=3)
    assert next(results) == (0, 0)
    assert next(taken) <= 7
    assert [square for _, square in results] == [n * n for n in range(1, 40) if n != 6]
    assert most == 3


def test_an_error_of_a_worker_or_of_the_source_comes_at_its_place():
    def items():
        yield from range(5)
        raise UserError("the source ends here")

    results = ahead(items(), str, num_workers=2)
    assert [next(results) for _ in range(5)] == [(number, str(number)) for number in range(5)]
    with pytest.raises(UserError, match="the source ends here"):
        next(results)
    results = ahead(items(), lambda number: 1 // (3 - number), num_workers=2)
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_shard_of_the_holdout_closes_at_its_size_too(prepare, write_jsonl, tmp_path):
    prepare(
        write_jsonl("a.jsonl", ["q" * 9] * 3 + [f"{number:09}" for number in range(90)]), holdout=0.8, shard_tokens=50
    )

    shards = Corpus(tmp_path / "corpus" / "holdout").manifest.shards
    assert len(shards) > 5
    assert max(entry.tokens for entry in shards) < 50 + 12


def test_a_small_holdout_does_not_keep_the_corpus_from_being_finished(prepare, write_jsonl, tmp_path):
    source = write_jsonl("a.jsonl", list(sample_documents(40, seed=2)))
    result = prepare(source, holdout=1e-9, sequence_length=64)

    assert result.holdout.documents == 0
    assert result.rows.num_rows > 0
    assert not (tmp_path / "corpus" / "unfinished").exists()
    with pytest.raises(UserError, match=r"all 40 documents are held out by --holdout 0\.999999"):
        prepare(source, output=tmp_path / "nothing", holdout=0.999999)


def test_the_output_may_lie_in_the_folder_that_is_read(prepare, write_jsonl, tmp_path, monkeypatch):
    source = write_jsonl("data/a.jsonl", [*sample_documents(60, seed=2)])
    shutil.copy(source, source.with_name("b.jsonl"))
    monkeypatch.setattr(groups, "SOURCE_GROUP_BYTES", 1)
    output, given = source.parent / "corpus", {"shard_tokens": 300}
    prepare(source.parent, output=tmp_path / "expected", **given)
    killed_behind(1, lambda: prepare(source.parent, output=output, **given))
    assert prepare(source.parent, output=output, **given).num_kept_shards > 0
    assert all_files(output) == all_files(tmp_path / "expected")

    prepare(source.parent, output=output, overwrite=True, **given)
    assert all_files(output) == all_files(tmp_path / "expected")
