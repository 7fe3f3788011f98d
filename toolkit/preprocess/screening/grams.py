"""Words of texts and their n-grams as arrays of 64-bit hashes, without a Python object per word.

Words are lowercased, split at whitespace and dashes, and stripped of punctuation (the "gram" of GPT-3, arXiv
2005.14165, appendix C): "Don't stop—now!" is `dont stop now`. Punctuation is the ASCII symbols and the Unicode
categories P; invisible characters (category Cf: zero-width space, soft hyphen) are removed likewise. What the Penn
Treebank and WikiText split is one word, as in plain text: `do n't`, `it 's`, `can not`, `well @-@ known`. In a script
without spaces (Chinese, Japanese, Thai, ...), every character is a word.
"""

import hashlib
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

WORDS_VERSION = 1
"""Increment with any change to the words: results found with earlier words are not comparable."""
_SPACE, _DELETED, _LONGEST_BYTES = ord(" "), 0xFFFF, 64
_TEXTS_AT_ONCE, _BETWEEN = 32, "\ufffe"  # A noncharacter, removed from texts.
_DASHES = "\u2012\u2013\u2014\u2015"
_SPLIT_ENDING = re.compile(r" '(?=(?:s|m|d|t|re|ve|ll)\b)", re.IGNORECASE)
# Thai and Lao, Burmese, Khmer, kana and ideographs: first code point of each range, and the first one after it.
_WITHOUT_SPACES = np.array(
    (0xE00, 0xF00, 0x1000, 0x10A0, 0x1780, 0x1800, 0x3040, 0x3100, 0x3400, 0xA000, 0xF900, 0xFB00), np.uint16
)
_FACTOR, _OTHER_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


class Words(NamedTuple):
    """Words of N texts: their concatenated hashes, and the number of words per text."""

    hashes: Hashes
    counts_N: Counts


def hash_words(texts: Sequence[str]) -> Words:
    """Hash the words of texts."""
    plain = _plain(texts)
    # Padded, because eight bytes are read at a time, even beyond the end of the last word.
    joined = b" ".join([b"", *plain, b" " * 8])
    is_word = np.frombuffer(joined, np.uint8) != _SPACE
    edges = np.flatnonzero(is_word[1:] != is_word[:-1]) + 1
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    text_ends = np.cumsum([len(text) + 1 for text in plain], dtype=np.int64)
    eights = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))
    hashes = lengths.astype(np.uint64) * _OTHER_FACTOR
    longer = np.arange(lengths.size)
    for offset in range(0, _LONGEST_BYTES, 8):
        longer = longer[lengths[longer] > offset]
        num_bytes = np.minimum(lengths[longer] - offset, 8)
        hashes[longer] = _mixed(hashes[longer] ^ (eights[starts[longer] + offset] & _FIRST_BYTES[num_bytes]))
    # A DNA sequence or a URL may be one word of any length.
    for number in longer[lengths[longer] > _LONGEST_BYTES].tolist():
        word = joined[starts[number] : starts[number] + lengths[number]]
        hashes[number] = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")
    return Words(hashes, np.diff(np.searchsorted(starts, text_ends, side="right"), prepend=0))


def hash_grams(words: Words, lengths: Sequence[int]) -> Iterator[tuple[int, Hashes, Counts]]:
    """For each length, ascending: the concatenated n-grams of all texts, and the number of n-grams per text, (N,).

    A text of fewer words has one, its words padded with zeros, which is no n-gram of a longer text.
    """
    sizes = np.maximum(words.counts_N, max(lengths))
    starts = np.cumsum(sizes) - sizes
    within = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
    padded = np.zeros(within.size, np.uint64)
    padded[within < np.repeat(words.counts_N, sizes)] = words.hashes
    grams, done = np.zeros(padded.size, np.uint64), 0
    for length in sorted(lengths):
        for offset in range(done, length):  # Horner's rule, modulo 2**64
            grams *= _FACTOR
            grams[: padded.size - offset] += padded[offset:]
        done, counts = length, np.maximum(words.counts_N - length + 1, 1)
        yield length, _mixed(grams[within < np.repeat(counts, sizes)]), counts


def _as_plain_text(text: str) -> str:
    """Text without the spaces that tokenized text has inside words, and with spaces for double hyphens."""
    # Runs on every text, so in the fastest way: few texts contain any of these.
    text = text.replace("\u2019", "'").replace(" n't", "n't").replace("can not ", "cannot ").replace("--", " ")
    if " '" in text:
        text = _SPLIT_ENDING.sub("", text)
    return text.replace(" @-@ ", "").replace(" @,@ ", "").replace(" @.@ ", "") if "@" in text else text


def _plain(texts: Sequence[str]) -> list[bytes]:
    """Space-separated words of each text, as UTF-8; for a text without words, a hash of the text."""
    _, lower, punctuation = _tables()
    texts = [_as_plain_text(text) for text in texts]
    others = [text for text in texts if not text.isascii()]
    groups = (others[start : start + _TEXTS_AT_ONCE] for start in range(0, len(others), _TEXTS_AT_ONCE))
    of_others = chain.from_iterable(map(_folded, groups))
    plain = [text.encode().translate(lower, punctuation) if text.isascii() else next(of_others) for text in texts]
    return [
        words if words and not words.isspace() else hashlib.blake2b(text.encode()).hexdigest().encode()
        for words, text in zip(plain, texts, strict=True)
    ]


def _folded(texts: Sequence[str]) -> list[bytes]:
    joined = _BETWEEN.join([text.replace(_BETWEEN, "") for text in texts])
    encoded = joined.encode("utf-16-le")
    if len(encoded) > 2 * len(joined):  # Characters beyond the first 65,536 take two units, and stay unless invisible.
        encoded = _invisible_beyond_units().sub("", joined).encode("utf-16-le")
    units = _tables()[0][np.frombuffer(encoded, "<u2")]
    units = units[units != _DELETED]
    late = np.flatnonzero(units >= _WITHOUT_SPACES[0])
    alone = late[np.searchsorted(_WITHOUT_SPACES, units[late], side="right") % 2 == 1]
    if alone.size:
        units = np.insert(units, np.concatenate([alone, alone + 1]), _SPACE)
    content: str = units.astype("<u2", copy=False).tobytes().decode("utf-16-le")
    return content.encode().split(_BETWEEN.encode())


@cache
def _tables() -> tuple[npt.NDArray[np.uint16], bytes, bytes]:
    """Replacement of each UTF-16 unit; for ASCII the same as arguments of `bytes.translate`."""
    folded = np.arange(1 << 16, dtype=np.uint16)
    for unit, character in enumerate(map(chr, range(1 << 16))):
        category = unicodedata.category(character)
        if character.isspace() or character in _DASHES:
            folded[unit] = _SPACE
        elif category[0] == "P" or category == "Cf" or character in string.punctuation:
            folded[unit] = _DELETED
        elif len(lower := character.lower()) == 1:
            folded[unit] = ord(lower)
    return folded, folded.astype(np.uint8)[:256].tobytes(), bytes(np.flatnonzero(folded[:128] == _DELETED).tolist())


@cache
def _invisible_beyond_units() -> re.Pattern[str]:
    # Only two of the planes beyond the first have any; checking all planes would take about 15 times as long.
    characters = map(chr, (*range(0x10000, 0x20000), *range(0xE0000, 0xE1000)))
    return re.compile(f"[{''.join(each for each in characters if unicodedata.category(each) == 'Cf')}]")


def _mixed(hashes: Hashes) -> Hashes:
    """The finalizer of splitmix64 (Steele et al., OOPSLA 2014): every bit depends on every bit."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _FACTOR
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _OTHER_FACTOR
    return hashes ^ (hashes >> np.uint64(31))
