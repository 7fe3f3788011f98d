"""Pairs of a query and a relevant document as training data of retrieval."""

import json

import pytest

from tests.support.hf_encoders import save_encoder
from tests.support.retrieval import word_collection
from tests.support.text import read_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.ir.contrastive import plan_batches, training_pairs
from toolkit.finetuning.ir.reading import read_pairs
from toolkit.finetuning.ir.task import Retrieval, RetrievalSettings

ROWS = [
    {"query": " a ", "positive": "da", "negative_1": "x", "negative_2": None},
    {"query": "b", "positive": "db", "negative_1": "da", "negative_2": ""},
    {"query": "a", "positive": "db", "negative_1": "y", "negative_2": "da"},
    {"query": "c", "positive": "dc", "negative_1": "x", "negative_2": "y"},
]


def write(path, rows=ROWS):
    names = list(rows[0])
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sign = "\t" if path.suffix == ".tsv" else ","
        path.write_text(
            "".join(sign.join(line) + "\n" for line in [names, *([row[n] or "" for n in names] for row in rows)])
        )
    return path


def pairs_of(path, **more):
    judged = read_pairs(path, BadRows(), **more)
    return training_pairs(judged, {text: text for text in judged.collection.documents})


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "tsv", "csv"])
def test_rows_of_one_query_belong_together(tmp_path, ending):
    pairs = pairs_of(write(tmp_path / f"pairs.{ending}"))
    assert {(pair.query, pair.positive, pair.negatives) for pair in pairs} == {
        # `da` is a negative of the query in one row and relevant in another.
        ("a", "da", ("x", "y")),
        ("a", "db", ("x", "y")),
        ("b", "db", ("da",)),
        ("c", "dc", ("x", "y")),
    }
    assert {pair.query: pair.relevant for pair in pairs}["a"] == {"a", "da", "db"}
    for batch in plan_batches(pairs, rows=4, steps=20, seed=0):
        queries = {row.query for row in batch}
        assert len(queries) == len(batch)
        # `db` is relevant to both.
        assert not {"a", "b"} <= queries


def test_a_query_is_not_told_apart_from_itself(tmp_path):
    """Of paraphrases both may be queries, and each a document of the other one."""
    texts = "abcdef"
    rows = [{"query": a, "positive": b, "negative": a} for a, b in [*zip(texts, texts[3:] + texts[:3], strict=True)]]
    pairs = pairs_of(write(tmp_path / "pairs.csv", [*rows, {"query": "x", "positive": "y", "negative": "z"}]))
    assert {pair.query: pair.negatives for pair in pairs} == dict.fromkeys(texts, ()) | {"x": ("z",)}
    for batch in plan_batches(pairs, rows=4, steps=20, seed=0):
        documents = [(row.positive, row.negative) for row in batch]
        assert not {row.query for row in batch} & {text for texts in documents for text in texts}


def test_scores_and_ids_are_no_negatives(tmp_path):
    row = {"query": "q", "positive": "p", "positive_score": "1", "negatives_score": "0.5", "negative_id": "7"}
    negatives = {"negative": "n", "negative_1": "n1", "negative-2": "n2", "negative3": "n3", "negative 4": "n4"}
    pairs = pairs_of(write(tmp_path / "pairs.csv", [row | negatives, row | negatives | {"query": "r"}]))
    assert [pair.negatives for pair in pairs] == [tuple(negatives.values())] * 2


def test_columns_may_have_other_names(tmp_path):
    triplets = [{"anchor": f"a{n}", "positive": f"p{n}", "negative": f"n{n}"} for n in range(3)]
    assert [pair.negatives for pair in pairs_of(write(tmp_path / "a.jsonl", triplets))] == [("n0",), ("n1",), ("n2",)]
    answers = write(tmp_path / "b.jsonl", [{"question": f"q{n}", "answer": f"d{n}"} for n in range(3)])
    assert [pair.positive for pair in pairs_of(answers, columns=("question", "answer"))] == ["d0", "d1", "d2"]
    assert RetrievalSettings(text_columns="question,answer").text_columns == ("question", "answer")
    with pytest.raises(UserError, match=r"no column 'query' or 'positive'; found: 'question', 'answer'\. Choose"):
        pairs_of(answers)


def test_rows_without_text_are_bad(tmp_path):
    bad_rows = [{"query": "", "positive": "x"}, {"query": "x", "positive": None}, {"query": 5, "positive": "x"}]
    path, bad = write(tmp_path / "pairs.jsonl", [*ROWS, *bad_rows]), BadRows("skip")
    assert [*read_pairs(path, bad).grades] == ["a", "b", "c"]
    assert [(row["reason"], row["first"]) for row in bad.report()] == [
        ("left out: 'query' has no text", ["row 5"]),
        ("left out: 'positive' has no text", ["row 6"]),
        ("left out: 'query' must be a string", ["row 7"]),
    ]
    with pytest.raises(UserError, match=r"row 5: 'query' has no text\. .* --bad-rows skip"):
        read_pairs(path, BadRows())


def test_an_encoder_is_trained_on_pairs_and_tested_on_judgements(tmp_path):
    collection = word_collection(tmp_path / "words", num_documents=12, num_queries=9)
    texts = {
        row["_id"]: row["text"] for name in ("corpus", "queries") for row in read_lines(collection / f"{name}.jsonl")
    }
    path = write(tmp_path / "pairs.tsv", [{"query": texts[f"q{n}"], "positive": texts[f"d{n}"]} for n in range(3)])
    model, settings = save_encoder("eurobert", tmp_path / "model"), RetrievalSettings(steps=3, batch_rows=4)
    results = [
        finetune("ir", model, train=train, test=collection, output=tmp_path / "out", settings=settings)
        for train in (path, collection)
    ]
    # The same pairs as judgements say.
    assert results[0].test == results[1].test
    assert [result.dataset for result in results] == ["pairs", "words"]


def test_the_paper_cuts_validation_queries_off_pairs(tmp_path):
    path = write(tmp_path / "pairs.tsv", [{"query": f"q{n}", "positive": f"d{n}"} for n in range(40)])
    test = word_collection(tmp_path / "words", num_documents=12, num_queries=9)
    data = Retrieval(RetrievalSettings(protocol="paper")).read({Split.TRAIN: path, Split.TEST: test})
    train, validation = (data.judgements[split].grades for split in (Split.TRAIN, Split.VALIDATION))
    assert (len(train), len(validation), train.keys() & validation.keys()) == (38, 2, set())
    assert data.searched[Split.VALIDATION] == sorted(
        (f"d{query[1:]}" for query in validation), key=[f"d{n}" for n in range(40)].index
    )
