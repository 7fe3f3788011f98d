"""Check that a tokenizer's Hugging Face form gives the ids of its reference, on texts chosen to expose differences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokenization.difference import Ids, Lengths, first_difference
from tokenization.errors import UnsupportedTokenizerError
from tokenization.reference import HuggingFaceReference, Reference

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
"""Texts of many kinds of characters, with runs of each."""


def check_conversion(
    name: str, reference: Reference, backend: "tokenizers.Tokenizer", *, special_texts: Sequence[str]
) -> None:
    """Compare on a few texts, strings of special tokens among them.

    Args:
        name: of the file, for the message.
        reference: whose ids are right.
        backend: the form.
        special_texts: strings of special tokens; they are read as text.

    Raises:
        UnsupportedTokenizerError: they differ.
    """
    shown = list(special_texts[:300])
    texts = [*PROBES, *shown, *(f"a{text}b {text}" for text in shown[:20])]
    difference = first_difference(
        texts, encode_flat(reference, texts), encode_flat(HuggingFaceReference(backend), texts)
    )
    if difference is not None:
        raise UnsupportedTokenizerError(
            f"{name} has no tokenizer.json that gives the same ids, and a corpus keeps one: {difference}. "
            "A pattern with possessive quantifiers can be the reason; else give a tokenizer.json."
        )


def encode_flat(reference: Reference, texts: Sequence[str]) -> tuple[Ids, Lengths]:
    """The ids of all texts one after the other, and the number of ids of each."""
    parts = list(reference.encode(texts))
    lengths = np.fromiter((part.size for part in parts), dtype=np.int64, count=len(parts))
    return np.concatenate([np.empty(0, dtype=np.uint32), *parts]), lengths
