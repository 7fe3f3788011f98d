import gzip
import math

import pytest

from tests.support.retrieval import write_beir
from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.ir import beir
from toolkit.finetuning.ir.beir import Document
from toolkit.finetuning.ir.ranking_metrics import ranking_scores

DOCUMENTS = [{"_id": "1", "title": "A", "text": "one"}, {"_id": "02", "title": "", "text": "two", "metadata": {}}]
QUERIES = [{"_id": "q", "text": "what"}, {"_id": "7", "text": "why"}]
QRELS = {"test": [("7", "02", 2), ("q", "1", 1), ("7", "1", 0)]}


def read(path, split="test"):
    file = beir.judgements_file(path, split=split)
    bad = BadRows()
    return beir.read_judgements(file, beir.read_collection(file, bad), bad)


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore\n", ""])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_folder_and_its_files(tmp_path, header, compressed):
    folder = write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS, header=header, compressed=compressed)
    for path in (folder, folder / "qrels" / "test.tsv"):
        assert beir.is_beir(path)
        judged = read(path)
        assert judged.grades == {"7": {"02": 2, "1": 0}, "q": {"1": 1}}
        assert list(judged.grades) == ["7", "q"]  # In order of first appearance; ids stay strings.
        assert judged.documents == ["1", "02"]
        assert judged.collection.documents == {"1": Document("A", "one"), "02": Document("", "two")}
        assert judged.collection.queries == {"q": "what", "7": "why"}


def test_json_lines_end_at_line_feeds_only(tmp_path):
    text = "before\u0085middle\u2028after"
    folder = write_beir(tmp_path / "set", [{"_id": "1", "text": text}], QUERIES[:1], {"test": [("q", "1", 1)]})
    assert read(folder).collection.documents["1"].text == text


def test_crlf_and_a_byte_order_mark(tmp_path):
    folder = write_beir(tmp_path / "set", DOCUMENTS, QUERIES, {})
    (folder / "qrels" / "test.tsv").write_bytes(b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq\t1\t1\r\n\r\n")
    corpus = folder / "corpus.jsonl"
    corpus.write_bytes(b"\xef\xbb\xbf" + corpus.read_bytes().replace(b"\n", b"\r\n"))
    assert read(folder).grades == {"q": {"1": 1}}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels/test.tsv", "q\t0\t1\t1\n", "separated by tabs, got 4 fields"),
        ("qrels/test.tsv", "q\t1\t1\nq\t02\thigh\n", "line 2: the grade must be an integer, found 'high'"),
        ("qrels/test.tsv", "q\t1\t1\nq\t1\t2\n", "line 2: document '1' has grade 2 for query 'q', but grade 1"),
        ("corpus.jsonl", '{"_id": "1", "text": "a"}\n{broken\n', "corpus.jsonl, line 2: not valid JSON"),
        ("corpus.jsonl", '["1"]\n', "corpus.jsonl, line 1: expected a JSON object, got a list"),
        ("corpus.jsonl", '{"id": "1", "text": "a"}\n', "line 1: '_id' must be a string that is not empty, found"),
        ("corpus.jsonl", '{"_id": "1", "content": "a"}\n', "line 1: 'text' must be a string, found an object"),
        ("queries.jsonl", '{"_id": "q", "text": " "}\n', "queries.jsonl, line 1: the query has no text"),
        ("queries.jsonl", '{"_id": "q", "text": "a"}\n' * 2, "queries.jsonl, line 2: '_id' 'q' occurs a second time"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, file, content, message):
    folder = write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS)
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read(folder)
    assert message.format(folder=folder) in str(error.value)


def test_judgements_of_what_is_not_there_are_read_as_trec_eval_does(tmp_path):
    """A query that is not there is left out; a document that is not there could have been found."""
    folder = write_beir(
        tmp_path / "set", DOCUMENTS, QUERIES, {"test": [("q", "1", 1), ("q", "none", 1), ("z", "1", 1)]}
    )
    file, bad = folder / "qrels" / "test.tsv", BadRows()
    judged = beir.read_judgements(file, beir.read_collection(file, bad), bad)
    assert judged.grades == {"q": {"1": 1, "none": 1}}
    assert judged.documents == ["1"]
    assert ranking_scores(judged.grades, {"q": ["1", "02"]})["ndcg@10"] == pytest.approx(1 / (1 + 1 / math.log2(3)))
    assert [(row["reason"], row["first"]) for row in bad.report()] == [
        (f"kept in the ideal ranking: the document is not in {folder}/corpus.jsonl", ["line 3"]),
        (f"left out: the query is not in {folder}/queries.jsonl", ["line 4"]),
    ]


def test_missing_files_are_named(tmp_path):
    folder = write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS)
    with pytest.raises(UserError, match=r"dev\.tsv: no such file; .*qrels holds test\.tsv"):
        read(folder, "dev")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(UserError, match=r"queries\.jsonl: no such file, nor queries\.jsonl\.gz"):
        read(folder)
    assert not beir.is_beir(tmp_path)


def test_a_broken_archive_is_named(tmp_path):
    folder = write_beir(tmp_path / "set", DOCUMENTS, QUERIES, QRELS, compressed=True)
    archive = folder / "corpus.jsonl.gz"
    for content in (archive.read_bytes()[:-12], b"no gzip", gzip.compress(b"\xff\n")):
        archive.write_bytes(content)
        with pytest.raises(UserError, match=r"corpus\.jsonl\.gz"):
            read(folder)
