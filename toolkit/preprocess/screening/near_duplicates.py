"""Near-duplicates: MinHash signatures of texts, and which documents of a whole corpus they show to be similar.

The fraction of equal values in two signatures of 128 values estimates the Jaccard similarity of the texts' word 5-grams
(standard error 0.035 at 0.8). Only documents that agree in all values of some band are compared (locality-sensitive
hashing: Leskovec et al., Mining of Massive Datasets, section 3.4).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from toolkit.preprocess.screening.grams import Words, hash_grams

SIGNATURE_VALUES = 128
_GRAM_WORDS, _SEED, _RECALL = 5, 1, 0.99
_COMPARED_AT_ONCE = 1 << 14

Signatures = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.int64]


def sign(words: Words) -> Signatures:
    """Signatures of N texts, (N, 128)."""
    import rensa

    [(_, grams, counts_N)] = hash_grams(words, [_GRAM_WORDS])
    offsets = np.concatenate([[0], np.cumsum(counts_N)]).astype(np.uint64)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(grams, offsets, SIGNATURE_VALUES, _SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, SIGNATURE_VALUES)


def first_of_groups(
    signatures: Sequence[Signatures], is_looked_at: npt.NDArray[np.bool_], similarity: float
) -> _Numbers:
    """For each document, the first one of its group: itself if it is the first, the only one, or not looked at.

    Each document of a group is similar to another one in it. Groups depend only on the documents and their order.

    Args:
        signatures: signatures of all documents, in parts, which may be memory maps.
        is_looked_at: whether each document is compared with others.
        similarity: minimum fraction of equal values for two documents to be similar.
    """
    firsts, documents = np.arange(is_looked_at.size), np.flatnonzero(is_looked_at)
    num_values, num_bands = _band_shape(similarity)
    for band in range(num_bands):
        its = slice(band * num_values, (band + 1) * num_values)
        keys = np.concatenate([_keys(part[:, its]) for part in signatures])[documents]
        order = np.argsort(keys, kind="stable")
        is_first = np.diff(keys[order], prepend=~keys[order[:1]]) != 0
        heads = order[np.flatnonzero(is_first)][np.cumsum(is_first) - 1]
        pairs = documents[np.stack([heads, order])[:, ~is_first]]
        pairs = pairs[:, firsts[pairs[0]] != firsts[pairs[1]]]
        firsts = _joined(firsts, pairs[:, _are_alike(signatures, pairs, similarity)])
    return firsts


def _band_shape(similarity: float) -> tuple[int, int]:
    """Values per band and number of bands such that 99 % of the pairs of exactly this similarity are compared."""

    def recall(num_values: int) -> float:
        return float(1 - (1 - similarity**num_values) ** (SIGNATURE_VALUES // num_values))

    num_values = max(number for number in range(1, SIGNATURE_VALUES + 1) if number == 1 or recall(number) >= _RECALL)
    return num_values, SIGNATURE_VALUES // num_values


def _keys(values: Signatures) -> npt.NDArray[np.uint64]:
    """Hash of the values of each row."""
    keys = np.zeros(len(values), np.uint64)
    for column in values.astype(np.uint64).T:
        keys = (keys ^ column) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _are_alike(signatures: Sequence[Signatures], pairs: _Numbers, similarity: float) -> npt.NDArray[np.bool_]:
    starts = np.cumsum([0, *map(len, signatures)])

    def rows(numbers: _Numbers) -> Signatures:
        found, parts = np.empty((numbers.size, SIGNATURE_VALUES), np.uint32), np.searchsorted(starts, numbers, "right")
        for part in np.unique(parts):
            found[parts == part] = signatures[part - 1][numbers[parts == part] - starts[part - 1]]
        return found

    blocks = (pairs[:, start : start + _COMPARED_AT_ONCE] for start in range(0, pairs.shape[1], _COMPARED_AT_ONCE))
    alike = [(rows(one) == rows(other)).mean(axis=1) >= similarity for one, other in blocks]
    return np.concatenate([np.empty(0, bool), *alike])


def _joined(firsts: _Numbers, pairs: _Numbers) -> _Numbers:
    """For each document, the first one of its group after merging the two groups of each pair."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs.size:
        return firsts
    links = coo_array((np.ones(pairs.shape[1], bool), tuple(firsts[pairs])), shape=(firsts.size, firsts.size))
    labels = connected_components(links, directed=False)[1]
    _, lowest = np.unique(labels, return_index=True)
    return np.asarray(lowest[labels[firsts]], np.int64)
