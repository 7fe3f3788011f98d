"""How far one gets by knowing nothing but how frequent each token is: the line that a model has to get below."""

from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from toolkit.data import Corpus
from toolkit.run.resolve import RunData
from toolkit.training.batching import EvaluationBatches

_TOKENS_AT_ONCE = 1 << 22


def frequency_losses(data: RunData) -> dict[str, float]:
    """Mean negative log frequency, in nats, of the very targets that the run evaluates, by objective.

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
