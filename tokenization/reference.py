"""Reference tokenizer backends, one per library; release of their freed memory; rules for turning text into ids."""

import ctypes
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tokenization.errors import TokenizationError, encoding_errors
from tokenization.special_tokens import SpecialNames

if TYPE_CHECKING:
    import tokenizers

Ids = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]

# Length in characters of a text that takes `tokenizers` about 25 MB of working memory, most of which a thread retains.
_LONG_TEXT = 1 << 18


class TokenizerKind(StrEnum):
    """Library whose ids are the reference of a tokenizer."""

    HUGGINGFACE = "huggingface"
    TIKTOKEN = "tiktoken"
    SENTENCEPIECE = "sentencepiece"


class Reference(Protocol):
    """A backend whose ids are correct by definition. Safe to call from several threads."""

    @property
    def kind(self) -> TokenizerKind:
        """Library that the ids come from."""
        ...

    def encode(self, texts: Sequence[str]) -> Iterator[Ids]:
        """The ids of each text, in order, as the library gives them."""
        ...


class HuggingFaceReference:
    """Encodes with `tokenizers`: normalizer, added tokens and post-processor included."""

    kind = TokenizerKind.HUGGINGFACE

    def __init__(self, backend: "tokenizers.Tokenizer") -> None:
        self._backend = backend

    def encode(self, texts: Sequence[str]) -> Iterator[Ids]:
        """The ids of each text.

        `tokenizers` (0.23) returns ids only as a Python list, not as a buffer; so the ids of one text at a time pass
        through a list, which is dropped before the next. Its own working memory is about 100 bytes per character
        of each text in progress, and it processes a text whole; so callers pass blocks of a few megabytes.
        """
        # Otherwise the library spreads each call over its own threads, but callers bring the threads. It reads this
        # variable at every call, and a user's own setting wins.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with encoding_errors():
            encodings = self._backend.encode_batch_fast(list(texts))
        encodings.reverse()
        while encodings:
            yield np.asarray(array("I", encodings.pop().ids), dtype=np.uint32)
        if any(len(text) > _LONG_TEXT for text in texts):
            release_freed_memory()


@dataclass(frozen=True)
class TokenizerParts:
    """Parts of a tokenizer, as read from its files.

    Attributes:
        backend: the Hugging Face form; `content` is its `tokenizer.json`, if already known.
        digest: hash of everything that determines its ids, except the names of special tokens.
        reference: the library's own backend, for kinds other than Hugging Face.
        folder: of the file, if configuration files belong to it.
        source: `organization/name@commit` of a tokenizer from the hub.
    """

    backend: "tokenizers.Tokenizer"
    names: SpecialNames
    digest: str
    content: bytes | None = None
    reference: Reference | None = None
    folder: Path | None = None
    source: str | None = None


def release_freed_memory() -> None:
    """Return freed memory to the system (glibc's malloc_trim); does nothing elsewhere.

    The tokenizer's threads free the hundreds of megabytes that a text of a few megabytes takes, but each thread's heap
    retains them, and the next long text may go to another thread: without this the heaps add up.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


@dataclass(frozen=True)
class EncodingRules:
    """Rules for turning text into ids. None: the default of the tokenizer's kind.

    Args:
        parse_special_text: the string of a special token inside a text becomes that token, as in transformers;
            otherwise it is plain text. Default for Hugging Face tokenizers; tiktoken and SentencePiece never do it.
        add_bos: keep the ids that the tokenizer's own post-processor puts in front of a text. A Hugging Face tokenizer
            may have a post-processor; tiktoken and SentencePiece files have none.
    """

    parse_special_text: bool | None = None
    add_bos: bool | None = None
    add_eod: bool = True

    def settled(self, kind: TokenizerKind) -> "EncodingRules":
        """The rules with defaults of `kind` for None; raise `TokenizationError` for a rule that it never follows."""
        is_hugging_face = kind is TokenizerKind.HUGGINGFACE
        library = "tiktoken" if kind is TokenizerKind.TIKTOKEN else "SentencePiece"
        if self.parse_special_text and not is_hugging_face:
            raise TokenizationError(
                f"Strings of special tokens inside text cannot be parsed (--special-text parse) with a {library} file: "
                f"the ids are those of {library} itself, which reads them as plain text. Leave the option out; or use "
                "a tokenizer.json, such as the tokenizer folder of a corpus made with this file."
            )
        if self.add_bos and not is_hugging_face:
            raise TokenizationError(
                f"A {library} file has no post-processor that puts a token in front of a text, and none is invented. "
                "Use a tokenizer.json that has one."
            )
        return EncodingRules(
            parse_special_text=is_hugging_face if self.parse_special_text is None else self.parse_special_text,
            add_bos=is_hugging_face if self.add_bos is None else self.add_bos,
            add_eod=self.add_eod,
        )
