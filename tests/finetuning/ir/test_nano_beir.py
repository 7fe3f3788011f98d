"""NanoBEIR: scores are those of sentence-transformers' evaluator."""

import random

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.text import read_lines
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split
from toolkit.finetuning.ir.task import RetrievalSettings
from toolkit.finetuning.named.datasets import DATASETS

ROWS = 40


def planted(seed):
    """Documents, queries and relevant ids of a set; its first query is a document of its own, as in ArguAna."""
    draw = random.Random(seed)
    documents = {f"d{n}": " ".join(draw.sample(WORDS, 8)) for n in range(ROWS)}
    queries = {f"q{n}": " ".join(draw.sample(documents[f"d{n}"].split(), 3)) for n in range(9)}
    queries["d0"] = documents["d0"]
    relevant = {query: {f"d{draw.randrange(ROWS)}" for _ in range(1 + n % 3)} for n, query in enumerate(queries)}
    return documents, queries, relevant


def write_set(folder, rows, documents, queries, relevant):
    """Files of a set, in place of those of the hub; an empty document is in no ranking."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = {
        "corpus": [{"_id": key, "text": text} for key, text in {**documents, "empty": ""}.items()],
        "queries": [{"_id": key, "text": text} for key, text in queries.items()],
        "qrels": [{"query-id": key, "corpus-id": one} for key, ids in relevant.items() for one in sorted(ids)],
    }
    files = {}
    for part, table in content.items():
        path = folder / f"{rows}-{part}.parquet"
        pq.write_table(pa.Table.from_pylist(table), path)
        files[f"{rows}/{part}"] = [path]
    return files


@pytest.mark.parametrize("family", ["eurobert", "bert"])
def test_scores_are_those_of_the_evaluator_and_their_mean(tmp_path, monkeypatch, family):
    model = save_encoder(family, tmp_path / family)
    uses = DATASETS["nanobeir"].splits("standard")[Split.TEST].rows
    sets = {name: planted(number) for number, name in enumerate(dict.fromkeys(use.split("/")[0] for use in uses))}
    files = {use: paths for name, one in sets.items() for use, paths in write_set(tmp_path, name, *one).items()}
    monkeypatch.setattr("toolkit.finetuning.named.datasets._fetched", lambda form, hub: files)
    result = finetune("ir", model, dataset="nanobeir", output=tmp_path / "out", settings=RetrievalSettings(steps=0))
    embedder = SentenceTransformer(str(tmp_path / "out/model"), device="cpu")
    found = {}
    for name, (documents, queries, relevant) in sets.items():
        evaluate = InformationRetrievalEvaluator(queries, documents, relevant, name=name, write_csv=False)
        scores = evaluate(embedder)
        found[name] = [scores[f"{name}_cosine_{metric}"] for metric in ("ndcg@10", "mrr@10")]
        assert result.test[f"{name}_ndcg@10"] == pytest.approx(found[name][0], abs=1e-6)
    means = [sum(scores) / len(sets) for scores in zip(*found.values(), strict=True)]
    assert [result.test[metric] for metric in ("ndcg@10", "mrr@10")] == pytest.approx(means, abs=1e-6)
    assert len(sets) == 13
    assert 0.02 < means[0] < 0.9
    rankings = {row["id"]: row["ranking"] for row in read_lines(tmp_path / "out/predictions.jsonl")}
    assert len(rankings) == 13 * 10
    # A set is searched apart; a query that is a document finds itself, as the evaluator has it.
    assert {document.partition("/")[0] for document in rankings["NanoNQ/q1"]} == {"NanoNQ"}
    assert rankings["NanoArguAna/d0"][0] == "NanoArguAna/d0"


def test_every_set_has_a_name_and_is_test_data():
    sets = {name: dataset for name, dataset in DATASETS.items() if name.startswith("nanobeir")}
    assert len(sets) == 14
    for name, dataset in sets.items():
        assert [*dataset.splits("standard")] == [*dataset.splits("paper")] == [Split.TEST]
        assert len(dataset.splits("standard")[Split.TEST].rows) == (39 if name == "nanobeir" else 3)
