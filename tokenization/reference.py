"""The reference encoders: each kind's own library, called text by text on the calling thread."""

import os
from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokenization.difference import Ids
from tokenization.errors import native_errors
from tokenization.memory import release_freed_memory

if TYPE_CHECKING:
    import tokenizers

# Characters of a text that take `tokenizers` some 25 MB of working memory, most of which stays with a thread.
_LONG_TEXT = 1 << 18


class TokenizerKind(StrEnum):
    """Which library is the reference of a tokenizer."""

    HUGGINGFACE = "huggingface"
    TIKTOKEN = "tiktoken"
    SENTENCEPIECE = "sentencepiece"


class Reference(Protocol):
    """An encoder whose ids are right by definition. Safe to call from several threads."""

    @property
    def kind(self) -> TokenizerKind:
        """Whose ids these are."""
        ...

    def encode(self, texts: Sequence[str]) -> Iterator[Ids]:
        """The ids of each text, in order, as the library gives them.

        Raises:
            TokenizationError: a text that cannot be encoded.
        """
        ...


class HuggingFaceReference:
    """Encodes with `tokenizers`: normalizer, added tokens and post-processor included."""

    kind = TokenizerKind.HUGGINGFACE

    def __init__(self, backend: "tokenizers.Tokenizer") -> None:
        self._backend = backend

    def encode(self, texts: Sequence[str]) -> Iterator[Ids]:
        """The ids of each text.

        `tokenizers` (0.23) hands ids out as a Python list only, no buffer; so the ids of one text at a time pass
        through a list, and it is dropped before the next. Its own working memory is about 100 bytes per character
        of each text in work, and it takes a text whole; so callers pass blocks of a few megabytes.
        """
        # Else the library spreads each call over threads of its own; callers bring the threads. It reads this
        # variable at every call, and a user's own setting wins.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with native_errors("The tokenizer cannot encode this text"):
            encodings = self._backend.encode_batch_fast(list(texts))
        encodings.reverse()
        while encodings:
            yield np.asarray(array("I", encodings.pop().ids), dtype=np.uint32)
        if any(len(text) > _LONG_TEXT for text in texts):
            release_freed_memory()
