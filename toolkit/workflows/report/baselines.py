"""Baselines of the report: unigram losses, and a bag-of-words classifier on the labelled data."""

from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from toolkit.data import Corpus
from toolkit.finetuning.examples import to_examples
from toolkit.finetuning.tables import read_table
from toolkit.run.resolve import RunData
from toolkit.training.batching import EvaluationBatches

_TOKENS_AT_ONCE = 1 << 22
_INVERSE_PENALTIES = (1.0, 10.0, 100.0)


def unigram_losses(data: RunData) -> dict[str, float]:
    """Cross-entropy of a unigram model, in nats per target, on the targets that the run evaluates; by objective.

    Frequencies are counted over the training corpus, with one added to each count.
    """
    log_frequency_V = torch.from_numpy(_log_frequencies(data.corpus))
    assert data.validation_rows is not None
    num_rows = min(data.settings.eval.rows or data.validation_rows.num_rows, data.validation_rows.num_rows)
    batches = EvaluationBatches(
        data.validation_rows, num_rows=num_rows, micro_batch_rows=8, seed=data.settings.run.seed
    )
    losses = {}
    for name, objective in data.evaluated.items():
        labels_N = torch.cat([batch.labels_N for batch, _ in batches.of(objective)])
        losses[name] = -float(log_frequency_V[labels_N].mean())
    return losses


def bag_of_words_accuracy(labelled: dict[str, Path]) -> float:
    """Test accuracy of logistic regression on TF-IDF of words and word bigrams; validation chooses the penalty.

    Args:
        labelled: files with the columns text and label, by split: train, validation, test.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = {}, {}
    for split, path in labelled.items():
        examples = to_examples(read_table(path), text_columns=("text",), label_column="label")
        texts[split] = [example.text for example in examples]
        labels[split] = [example.label for example in examples]
    candidates = [
        make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=penalty, max_iter=1000)).fit(
            texts["train"], labels["train"]
        )
        for penalty in _INVERSE_PENALTIES
    ]
    best = max(candidates, key=lambda candidate: candidate.score(texts["validation"], labels["validation"]))
    return float(best.score(texts["test"], labels["test"]))


def _log_frequencies(corpus: Corpus) -> npt.NDArray[np.float64]:
    """Log of each token's share of the corpus, (V,)."""
    counts_V = np.ones(corpus.vocabulary.size, dtype=np.int64)
    parts = chain.from_iterable(
        (shard.tokens[start : start + _TOKENS_AT_ONCE] for start in range(0, shard.num_tokens, _TOKENS_AT_ONCE))
        for shard in corpus.shards
    )
    for tokens in parts:
        counts_V += np.bincount(tokens, minlength=counts_V.size)
    frequencies_V: npt.NDArray[np.float64] = counts_V / counts_V.sum()
    return np.log(frequencies_V)
