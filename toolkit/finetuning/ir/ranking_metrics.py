"""Scores of rankings, by trec_eval's definitions and as the paper's authors compute them."""

import math
from collections.abc import Mapping, Sequence

from toolkit.finetuning.ir.beir import Grades

Rankings = Mapping[str, Sequence[str]]
"""Document ids from best to worst, by query id."""

_CUTOFF = 10


def ranking_scores(grades: Grades, rankings: Rankings) -> dict[str, float]:
    """Means over all judged queries, by trec_eval (pytrec-eval-terrier).

    `ndcg@10`: linear gains, against the best ranking of everything judged. `mrr@10`: 1 / rank of the first relevant
    document, 0 if it is not in the top ten. `recall@100`: share of the relevant documents in the top hundred. Unjudged
    documents count as not relevant; a query without a relevant document scores 0.
    """
    import pytrec_eval

    judged = {query: dict(of_query) for query, of_query in grades.items()}
    full = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.100"})
    first = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"})
    found = full.evaluate(_run(rankings))
    reciprocal = first.evaluate(_run({query: ranking[:_CUTOFF] for query, ranking in rankings.items()}))
    return {
        "ndcg@10": math.fsum(scores["ndcg_cut_10"] for scores in found.values()) / len(grades),
        "mrr@10": math.fsum(scores["recip_rank"] for scores in reciprocal.values()) / len(grades),
        "recall@100": math.fsum(scores["recall_100"] for scores in found.values()) / len(grades),
    }


def _run(rankings: Rankings) -> dict[str, dict[str, float]]:
    """Decreasing scores, because trec_eval orders by score, and ties by document id."""
    return {
        query: {document: float(len(ranking) - rank) for rank, document in enumerate(ranking)}
        for query, ranking in rankings.items()
    }


def paper_ndcg(grades: Grades, rankings: Rankings) -> float:
    """NDCG@10 as the paper's authors compute it, a mean over all judged queries.

    A grade of 1 or more counts as 1, and the ideal ranking only reorders the ten retrieved documents: missed relevant
    ones cost nothing. A query with no hit in the top ten scores 0.
    """
    return math.fsum(_of_hits(of_query, rankings.get(query, ())) for query, of_query in grades.items()) / len(grades)


def _of_hits(grades: Mapping[str, int], ranking: Sequence[str]) -> float:
    hits = [rank for rank, document in enumerate(ranking[:_CUTOFF]) if grades.get(document, 0) > 0]
    if not hits:
        return 0.0
    return _gain(hits) / _gain(range(len(hits)))


def _gain(ranks: Sequence[int]) -> float:
    return math.fsum(1 / math.log2(rank + 2) for rank in ranks)
