from collections import Counter

import torch

from tests.support.hf_encoders import save_encoder
from toolkit.finetuning import open_source
from toolkit.finetuning.inputs import framed_source
from toolkit.finetuning.ir.contrastive import TrainingPair, TrainingRow, plan_batches, train_contrastively
from toolkit.finetuning.ir.embedding import new_embedder
from toolkit.finetuning.ir.task import RetrievalSettings


def pairs_of(relevant, negatives=None):
    return [
        TrainingPair(query, text, frozenset(texts), tuple((negatives or {}).get(query, ())))
        for query, texts in relevant.items()
        for text in texts
    ]


def clashes(batch, relevant):
    """(query, document) of a batch where the document of another example is relevant to the query."""
    return [
        (one.query, document)
        for one in batch
        for other in batch
        for document in (other.positive, other.negative)
        if one is not other and document in relevant[one.query]
    ]


def test_no_document_of_a_batch_is_relevant_to_another_query():
    relevant = {f"q{n}": [f"d{n}", f"d{n + 1}", f"d{n + 2}"] for n in range(40)}  # Neighbours share documents.
    negatives = {f"q{n}": [f"d{n + 5}", f"d{n + 9}"] for n in range(0, 40, 2)}
    batches = plan_batches(pairs_of(relevant, negatives), rows=8, steps=60, seed=3)
    assert [len(batch) for batch in batches].count(8) >= 55
    for batch in batches:
        assert clashes(batch, relevant) == []
        assert len({example.query for example in batch}) == len(batch)


def test_every_pair_comes_once_in_a_pass():
    relevant = {f"q{n}": [f"d{n}"] for n in range(24)}
    batches = plan_batches(pairs_of(relevant), rows=8, steps=6, seed=0)
    first, second = (Counter(row.positive for batch in part for row in batch) for part in (batches[:3], batches[3:]))
    assert first == second == Counter({f"d{n}": 1 for n in range(24)})
    assert batches[:3] != batches[3:]
    assert {row.negative for batch in batches for row in batch} == {None}


def test_negatives_are_those_judged_and_else_of_other_pairs():
    relevant = {"a": ["da"], "b": ["db"], "c": ["dc"]}
    batches = plan_batches(pairs_of(relevant, {"a": ["x", "y"]}), rows=1, steps=60, seed=0)
    drawn = {query: {row.negative for batch in batches for row in batch if row.query == query} for query in relevant}
    assert drawn == {"a": {"x", "y"}, "b": {"da", "dc", "x", "y"}, "c": {"da", "db", "x", "y"}}


def test_the_plan_follows_from_the_seed():
    pairs = pairs_of({f"q{n}": [f"d{n}"] for n in range(50)})
    plans = [plan_batches(pairs, rows=8, steps=9, seed=seed) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_pairs_that_never_fit_together_make_small_batches():
    pairs = pairs_of({"a": ["d1", "d2"], "b": ["d1", "d2"]})
    assert {len(batch) for batch in plan_batches(pairs, rows=4, steps=5, seed=0)} == {1}


def test_a_batch_is_trained_as_planned(tmp_path):
    source = framed_source(open_source(str(save_encoder("eurobert", tmp_path / "model"))), protocol="standard")
    embedder, seen = new_embedder(source, prompts={"query": "", "document": ""}), []

    class Loss(torch.nn.Module):
        def forward(self, features, labels):
            seen.append([embedder.tokenizer.decode(ids, skip_special_tokens=True) for ids in features[0]["input_ids"]])
            return embedder(features[0])["sentence_embedding"].sum()

    plan = [["w3", "w1"], ["w2"], ["w6", "w4", "w5"], ["w1", "w2", "w3"]]
    batches = [[TrainingRow(text, "w7", None) for text in batch] for batch in plan]
    train_contrastively(embedder, batches, Loss(), settings=RetrievalSettings(), folder=tmp_path / "training")
    assert seen == plan
