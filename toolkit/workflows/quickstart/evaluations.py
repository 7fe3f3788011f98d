"""Evaluations of the report: baselines (unigram losses, a bag-of-words classifier) and predictions of masked words."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from toolkit.core.console import quiet_transformers
from toolkit.data import Corpus
from toolkit.run.data import RunData
from toolkit.tables import read_table
from toolkit.training.batching import EvaluationBatches

_TOKENS_AT_ONCE = 1 << 22
_INVERSE_PENALTIES = (1.0, 10.0, 100.0)
_NUM_PREDICTIONS = 3

_SENTENCES = (
    ("The film was released in the United", " States", " in 1998."),
    ("She", " was", " born in New York City."),
    ("It is one", " of", " the largest cities in the country."),
    ("The war began", " in", " 1861 and ended four years later."),
    ("They", " were", " married in 1921 and had three children."),
    ("The team won the championship for the first", " time", " in its history."),
    ("The band released their first", " album", " in 1995."),
    ("In 1914 he joined the", " army", " and fought in the war."),
)
"""Text before the masked word, the word with its space, text after it."""


@dataclass(frozen=True)
class MaskedWord:
    """A sentence with one word masked, and the predictions of the encoder."""

    before: str
    word: str
    after: str
    predictions: tuple[tuple[str, float], ...]
    """Words and their probabilities, the likeliest first."""


def unigram_losses(data: RunData) -> dict[str, float]:
    """Cross-entropy of a unigram model, in nats per target, on the targets that the run evaluates; by objective.

    Frequencies are counted over the training corpus, with one added to each count.
    """
    log_frequency_V = torch.from_numpy(_log_frequencies(data.corpus))
    (rows,) = data.validation_rows.values()
    num_rows = min(data.run.settings.eval.rows or rows.num_rows, rows.num_rows)
    batches = EvaluationBatches(rows, num_rows=num_rows, micro_batch_rows=8, seed=data.run.settings.run.seed)
    losses = {}
    for name, objective in data.evaluated.items():
        labels_N = torch.cat([batch.labels_N for batch in batches.of(objective)])
        losses[name] = -float(log_frequency_V[labels_N].mean())
    return losses


def bag_of_words_accuracy(labelled: dict[str, Path]) -> float:
    """Test accuracy of logistic regression on TF-IDF of words and word bigrams; validation chooses the penalty."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = {}, {}
    for split, path in labelled.items():
        rows = read_table(path).rows
        texts[split], labels[split] = ([str(row[column]) for row in rows] for column in ("text", "label"))
    candidates = [
        make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=penalty, max_iter=1000)).fit(
            texts["train"], labels["train"]
        )
        for penalty in _INVERSE_PENALTIES
    ]
    best = max(candidates, key=lambda candidate: candidate.score(texts["validation"], labels["validation"]))
    return float(best.score(texts["test"], labels["test"]))


def predict_masked_words(encoder: Path) -> tuple[MaskedWord, ...]:
    """Predictions of a masked-language model for one word of each sentence."""
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model = AutoModelForMaskedLM.from_pretrained(encoder, local_files_only=True).eval()
    found = []
    for before, word, after in _SENTENCES:
        inputs = tokenizer(f"{before}{tokenizer.mask_token}{after}", return_tensors="pt")
        (position,) = (inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
        with torch.no_grad():
            logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits[0, position]
        likeliest = logits.float().softmax(-1).topk(_NUM_PREDICTIONS)
        predictions = tuple(
            (str(tokenizer.decode([token])), probability)
            for token, probability in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        )
        found.append(MaskedWord(before, word, after, predictions))
    return tuple(found)


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
