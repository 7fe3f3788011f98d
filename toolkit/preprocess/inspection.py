"""Look into a corpus: how long its documents are, what its rows read like."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from tokenization import Tokenizer, load
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.core.validation import explain
from toolkit.data import Corpus, DataSettings, Rows
from toolkit.run.load import apply_override

MOST_COUNTED = 1 << 16
"""Lengths below are counted one by one, so that percentiles are exact for all but giant documents."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Lengths:
    """How long the documents of a corpus are, in tokens.

    Attributes:
        shortest: over all documents.
        longest: over all documents.
        counts: number of documents of each length; the last entry counts those of 65,536 tokens and more.
        powers: number of documents of 2^(k-1) to 2^k - 1 tokens at entry k.
    """

    shortest: int
    longest: int
    counts: npt.NDArray[np.int64]
    powers: npt.NDArray[np.int64]

    def percentile(self, percent: float) -> int:
        """The shortest length that `percent` of the documents do not exceed; 65,536 where it is that or more."""
        ranks = np.cumsum(self.counts)
        return int(np.searchsorted(ranks, np.ceil(percent / 100 * ranks[-1])))


def measure_lengths(corpus: Corpus) -> Lengths:
    """Read the indices of all shards, in bounded memory."""
    shortest, longest = 1 << 62, 0
    counts, powers = np.zeros(MOST_COUNTED + 1, np.int64), np.zeros(33, np.int64)
    for shard in corpus.shards:
        for start in range(0, shard.num_documents, _CHUNK):
            lengths = shard.lengths[start : start + _CHUNK]
            shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
            counts += np.bincount(np.minimum(lengths, MOST_COUNTED), minlength=counts.size)
            powers += np.bincount(np.frexp(lengths)[1], minlength=powers.size)
    return Lengths(min(shortest, longest), longest, counts, powers)


def load_tokenizer(corpus: Corpus) -> Tokenizer:
    """The tokenizer in the corpus folder.

    Raises:
        CorpusError: it is another one than the corpus was made with.
        TokenizationError: it is missing or cannot be read.
    """
    tokenizer = load(corpus.tokenizer_folder)
    if tokenizer.fingerprint != corpus.fingerprint:
        raise CorpusError(
            f"{corpus.tokenizer_folder} is not the tokenizer that {corpus.path} was made with: their fingerprints are "
            f"{tokenizer.fingerprint[:12]} and {corpus.fingerprint[:12]}. Copy the corpus again."
        )
    return tokenizer


@dataclass(frozen=True)
class Segment:
    """A segment of a row; number 0 is padding."""

    number: int
    num_tokens: int
    text: str


def read_segments(rows: Rows, tokenizer: Tokenizer, *, row: int) -> list[Segment]:
    """The segments of a row as it is in the first epoch, in order, decoded.

    Raises:
        CorpusError: the corpus is damaged there.
    """
    read = rows.read(np.array([row]), np.array([0]))
    tokens_S, segments_S = read.tokens_BS[0], read.segments_BS[0]
    bounds = [0, *(np.flatnonzero(np.diff(segments_S)) + 1).tolist(), segments_S.size]
    return [
        Segment(int(segments_S[start]), stop - start, tokenizer.decode(tokens_S[start:stop]))
        for start, stop in itertools.pairwise(bounds)
    ]


def row_settings(folder: Path, overrides: Sequence[str]) -> DataSettings:
    """How rows are made: the defaults, with `data.key=value` overrides.

    Raises:
        SettingsError: an override that cannot be read or does not fit.
    """
    raw: dict[str, Any] = {"data": {"train": str(folder)}}
    for override in overrides:
        apply_override(raw, override)
        if set(raw) != {"data"} or not isinstance(raw["data"], dict):
            raise SettingsError(
                f"--set {override}: only data.* can be set here, for example --set data.windows=blocks."
            )
    if raw["data"].get("train") != str(folder):
        raise SettingsError(
            f"--set data.train: this shows the corpus {folder}. Inspect the corpora of a blend one by one."
        )
    try:
        return DataSettings.model_validate(raw["data"])
    except ValidationError as error:
        raise SettingsError(f"--set: {explain(error, DataSettings, group='data')}") from error
