import math
import random

import pytest
import pytrec_eval

from toolkit.finetuning.ir.ranking_metrics import paper_ndcg, ranking_scores


def discount(rank):
    return 1 / math.log2(rank + 1)


def test_graded_judgements_by_hand():
    grades = {"q": {"a": 3, "b": 1, "c": 0, "missed": 2}}
    scores = ranking_scores(grades, {"q": ["c", "b", "unjudged", "a"]})
    ideal = 3 * discount(1) + 2 * discount(2) + 1 * discount(3)  # Linear gains, the missed document among them.
    assert scores["ndcg@10"] == pytest.approx((1 * discount(2) + 3 * discount(4)) / ideal, abs=1e-12)
    assert scores["mrr@10"] == 1 / 2
    assert scores["recall@100"] == pytest.approx(2 / 3)


def test_what_stands_behind_the_cutoffs_does_not_count():
    ranking = [f"d{number}" for number in range(120)]
    scores = ranking_scores({"q": {"d10": 1, "d99": 1, "d100": 1, "d119": 1}}, {"q": ranking})
    assert scores == {"ndcg@10": 0.0, "mrr@10": 0.0, "recall@100": 0.5}


def test_every_judged_query_counts_and_ties_do_not_reorder():
    # The second query has nothing relevant; "b" would precede "a" in trec_eval if both had one score.
    scores = ranking_scores({"1": {"a": 1}, "2": {"a": 0}}, {"1": ["a", "b"], "2": ["b", "a"]})
    assert scores == {"ndcg@10": 0.5, "mrr@10": 0.5, "recall@100": 0.5}


def test_the_same_as_pytrec_eval_on_many_rankings():
    draw = random.Random(1)
    documents = [str(number) for number in range(300)]
    grades = {
        str(query): {document: draw.randint(-1, 3) for document in draw.sample(documents, 20)} for query in range(50)
    }
    rankings = {query: draw.sample(documents, 150) for query in grades}
    run = {q: {d: -float(rank) for rank, d in enumerate(ranking)} for q, ranking in rankings.items()}
    cut = {q: {d: -float(rank) for rank, d in enumerate(ranking[:10])} for q, ranking in rankings.items()}
    full = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10", "recall.100"}).evaluate(run)
    first = pytrec_eval.RelevanceEvaluator(grades, {"recip_rank"}).evaluate(cut)
    assert ranking_scores(grades, rankings) == {
        "ndcg@10": math.fsum(row["ndcg_cut_10"] for row in full.values()) / 50,
        "mrr@10": math.fsum(row["recip_rank"] for row in first.values()) / 50,
        "recall@100": math.fsum(row["recall_100"] for row in full.values()) / 50,
    }


@pytest.mark.parametrize(
    ("ranking", "score"),
    [
        (["a", "x", "b"], (discount(1) + discount(3)) / (discount(1) + discount(2))),  # c was missed at no cost.
        (["b"], 1.0),
        (["x", "a"], discount(2)),
        (["x", "y"], 0.0),
        ([*"0123456789", "a"], 0.0),  # The eleventh.
        (["zero", "a"], discount(2)),
    ],
)
def test_the_papers_ndcg_by_hand(ranking, score):
    assert paper_ndcg({"q": {"a": 1, "b": 3, "c": 2, "zero": 0}}, {"q": ranking}) == pytest.approx(score, abs=1e-12)


def test_the_papers_ndcg_is_a_mean_over_judged_queries():
    assert paper_ndcg({"1": {"a": 1}, "2": {"a": 1}}, {"1": ["a"], "2": ["b"]}) == 0.5


def test_a_query_without_a_ranking_scores_nothing():
    grades, rankings = {"1": {"a": 1}, "2": {"a": 1}}, {"1": ["a"]}
    assert paper_ndcg(grades, rankings) == 0.5
    assert ranking_scores(grades, rankings) == {"ndcg@10": 0.5, "mrr@10": 0.5, "recall@100": 0.5}
