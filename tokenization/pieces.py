"""Pieces of a vocabulary as the bytes of text that they stand for, and the pieces that spell given bytes.

Vocabularies write the same text differently: byte-level ones in GPT-2's alphabet, SentencePiece's with `▁` for a space
and `<0x0A>` for a byte, WordPiece's with `##` if a word continues. Bytes make their pieces comparable.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from tokenization.backend import byte_level_bytes, byte_level_text, is_byte_level
from tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_BLANK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class _Spelling(StrEnum):
    """A vocabulary's way of writing text."""

    BYTES = "byte-level"
    BLANKS = "SentencePiece"
    WORDS = "WordPiece"
    PLAIN = "as it stands"


@dataclass(frozen=True)
class Piece:
    """Text of an ordinary token."""

    content: bytes
    is_byte: bool = False
    """Whether it is the fallback for one byte of text that no piece spells."""
    is_continued: bool = False
    """Whether it continues a word in a WordPiece vocabulary: `##§` and `§` stand for the same bytes."""


class Pieces:
    """The ordinary (not special) tokens of a tokenizer, by id and by bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._spelling = _spelling(self._backend)
        special = set(tokenizer.all_special_ids)
        added = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        self.by_id = {
            token_id: Piece(text.encode()) if text in added else self._piece(text)
            for text, token_id in self._backend.get_vocab(with_added_tokens=True).items()
            if token_id not in special
        }
        # The first of equal pieces; of pieces for the same bytes, one that is neither a fallback nor a continuation.
        ranked = sorted(self.by_id.items(), key=lambda entry: (entry[1].is_byte, entry[1].is_continued, entry[0]))
        self._by_piece = {piece: token_id for token_id, piece in reversed(ranked)}
        self._by_content = {piece.content: token_id for token_id, piece in reversed(ranked)}

    def find(self, piece: Piece) -> int | None:
        """Id of a token for the same bytes, preferably spelled the same; None if absent."""
        return self._by_piece.get(piece, self._by_content.get(piece.content))

    def spell(self, content: bytes) -> list[int]:
        """Ids that spell these bytes inside a longer text; empty if the vocabulary cannot spell them."""
        if self._spelling is _Spelling.BYTES:
            # Bypasses the rules that split a text into words: these bytes already result from such a split.
            return self._ordinary([token.id for token in self._backend.model.tokenize(byte_level_text(content))])
        try:
            text = content.decode()
        except UnicodeDecodeError:  # part of a character
            single = [self.find(Piece(bytes([byte]), is_byte=True)) for byte in content]
            return [token_id for token_id in single if token_id is not None] if None not in single else []
        if self._spelling is _Spelling.BLANKS:
            return self._ordinary([token.id for token in self._backend.model.tokenize(text.replace(" ", _BLANK))])
        return self._ordinary(self._backend.encode(text, add_special_tokens=False).ids)

    def _ordinary(self, ids: list[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self.by_id]

    def _piece(self, text: str) -> Piece:
        if self._spelling is _Spelling.BYTES:
            return Piece(byte_level_bytes(text))
        if self._spelling is _Spelling.BLANKS:
            if byte := _BYTE.fullmatch(text):
                return Piece(bytes.fromhex(byte[1]), is_byte=True)
            return Piece(text.replace(_BLANK, " ").encode())
        if self._spelling is _Spelling.WORDS:
            if text.startswith(self._continuation):
                return Piece(text.removeprefix(self._continuation).encode(), is_continued=True)
            # Words follow a space, punctuation seldom does.
            return Piece((f" {text}" if text[:1].isalnum() else text).encode())
        return Piece(text.encode())

    @cached_property
    def _continuation(self) -> str:
        return str(self._backend.model.continuing_subword_prefix)


def _spelling(backend: "tokenizers.Tokenizer") -> _Spelling:
    if is_byte_level(backend):
        return _Spelling.BYTES
    if type(backend.model).__name__ == "WordPiece":
        return _Spelling.WORDS
    parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
    if any(part is not None and _BLANK.encode() in part.__getstate__() for part in parts):
        return _Spelling.BLANKS
    return _Spelling.PLAIN
