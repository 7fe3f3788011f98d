"""Comparison of encodings: two backends, a converted tokenizer and its reference, or a tokenizer and transformers.

`AutoTokenizer`, whose ids Megatron-LM and most tools use, reads the configuration files beside a tokenizer, and some of
its classes override a `tokenizer.json` or a SentencePiece model: they add tokens around a text, or treat spaces
differently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenization.errors import Difference, UnsupportedTokenizerError
from tokenization.reference import HuggingFaceReference, Ids, Lengths, Reference
from tokenization.special_tokens import ROLES

if TYPE_CHECKING:
    import tokenizers

PROBES = (
    "The quick brown fox, which they'd seen in 1998, isn't HERE; we'll say: \"It's 12345678 m/s away!\"\r\n\r\nYES.",
    "  two  spaces,   three,\tand\ta tab \n \n  line\n\n\nends   ",
    "def f(x_1, *args):\n    if x_1 != 0x1F:\n\t\treturn [None]*len(args)  # ------- ====== ......",
    "Æsop naïve café Straße \u0130stanbul \u00bd \u2168 e\u0301 \u00a0\u2003\u3000 \u201cquoted\u201d \u2014 \u2026",
    "\u4e2d\u6587\u65e5\u672c\u8a9e \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0639\u0631\u0628\u064a "
    "\u0939\u093f\u0928\u094d\u0926\u0940 \ud55c\uad6d\uc5b4 \U0001f642\U0001f469\u200d\U0001f467",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abababababababab                                          b",
    "x",
    " ",
    "\n",
)
"""Texts with many kinds of characters, and runs of each."""
_SHOWN_IDS, _HASHED_IDS = 8, 16
# An odd 64-bit constant with well-mixed bits.
_MIXER = np.uint64(0x9E3779B97F4A7C15)
# Encoded both by transformers and by the tokenizer here.
_TEXTS = ("Call me Ishmael.", " A text may begin with a blank.", *PROBES)


def first_difference(
    texts: Sequence[str], expected: tuple[Ids, Lengths], found: tuple[Ids, Lengths]
) -> Difference | None:
    """First difference of two encodings of the same texts, each as concatenated ids and the number of ids per text."""
    for number, ours, theirs in differences(expected, found):
        shorter = min(ours.size, theirs.size)
        differing = np.flatnonzero(ours[:shorter] != theirs[:shorter])
        token = int(differing[0]) if differing.size else shorter
        stop = token + _SHOWN_IDS
        return Difference(texts[number], token, tuple(ours[token:stop].tolist()), tuple(theirs[token:stop].tolist()))
    return None


def differences(expected: tuple[Ids, Lengths], found: tuple[Ids, Lengths]) -> Iterator[tuple[int, Ids, Ids]]:
    """Index and both encodings of each text whose ids differ between two encodings of the same texts."""
    if np.array_equal(expected[1], found[1]) and np.array_equal(expected[0], found[0]):
        return
    parts = (np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (expected, found))
    for number, (ours, theirs) in enumerate(zip(*parts, strict=True)):
        if not np.array_equal(ours, theirs):
            yield number, ours, theirs


def hashes_of(encoded: tuple[Ids, Lengths]) -> npt.NDArray[np.uint32]:
    """32-bit hashes of each text's number of ids and first and last ids, for sampling texts; same cost for any length.
    A text without ids has hash 0, so that one which a backend loses whole is sampled.
    """
    ids, lengths = encoded
    hashes, is_some = np.zeros(lengths.size, dtype=np.uint32), lengths > 0
    last = np.cumsum(lengths)[is_some] - 1
    first, mixed = last + 1 - lengths[is_some], lengths[is_some].astype(np.uint64)
    for offset in range(_HASHED_IDS):
        for place in (np.minimum(first + offset, last), np.maximum(last - offset, first)):
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIXER + ids[place]
    hashes[is_some] = ((mixed ^ (mixed >> np.uint64(32))) * _MIXER) >> np.uint64(32)
    return hashes


def check_conversion(
    name: str, reference: Reference, backend: "tokenizers.Tokenizer", *, special_texts: Sequence[str]
) -> None:
    """Compare a Hugging Face form with its reference on a few texts, including strings of special tokens.

    Raise `UnsupportedTokenizerError`, with a message that begins with `name`, if they differ.
    """
    shown = list(special_texts[:300])
    texts = [*PROBES, *shown, *(f"a{text}b {text}" for text in shown[:20])]
    difference = first_difference(
        texts, joined(reference.encode(texts)), joined(HuggingFaceReference(backend).encode(texts))
    )
    if difference is not None:
        raise UnsupportedTokenizerError(
            f"{name} has no tokenizer.json that gives the same ids, and a corpus keeps one: {difference}. "
            "A pattern with possessive quantifiers can be the reason; else give a tokenizer.json."
        )


def joined(parts: Iterable[Ids]) -> tuple[Ids, Lengths]:
    """Concatenated ids of all texts, and the number of ids of each."""
    parts = list(parts)
    return np.concatenate([np.empty(0, np.uint32), *parts]), np.fromiter(map(len, parts), np.int64, len(parts))


def transformers_differences(
    folder: Path, *, encode: Callable[[str], Sequence[int]], ids: Mapping[str, int]
) -> list[str]:
    """Compare a tokenizer with the one `AutoTokenizer` loads from its folder, configuration files included.

    `encode` returns the ids of a text, post-processor included. Return one sentence per kind of difference.
    """
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # Not verbose: warnings about long texts do not matter, since no model runs on these ids.
        theirs = [list(loaded(text, verbose=False)["input_ids"]) for text in _TEXTS]
    except Exception as error:  # another library's loader may raise anything
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        return [f"AutoTokenizer does not load it, so ids were not compared ({reason})"]
    found = []
    ours = [list(encode(text)) for text in _TEXTS]
    differing = [number for number in range(len(_TEXTS)) if ours[number] != theirs[number]]
    if differing:
        first = differing[0]
        found.append(
            f"AutoTokenizer gives other ids for {len(differing)} of {len(_TEXTS)} texts, for example "
            f"{_TEXTS[first][:40]!r}: {_shown(theirs[first])}, and here {_shown(ours[first])}. What it adds around a "
            "text or changes in it is not in the file that was read; "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes one that has it"
        )
    for role in ROLES:
        token = getattr(loaded, f"{role}_token", None)
        theirs_id = getattr(loaded, f"{role}_token_id", None)
        if token is not None and theirs_id is not None and ids.get(str(token), theirs_id) != theirs_id:
            found.append(
                f"AutoTokenizer gives the {role} token {token} the id {theirs_id}, and here it is {ids[token]}"
            )
    return found


def _shown(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', ...' if len(ids) > 6 else ''}]"
