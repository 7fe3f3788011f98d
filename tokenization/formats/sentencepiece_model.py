"""Parser of SentencePiece `.model` files (protocol buffers), with every lookup checked.

The library itself trusts a file more than it should: damaged tables can crash the process. So a file is parsed here
first, and only a consistent one is passed on.

The compiled character map in it is a little-endian size, a double-array trie of that many bytes (the layout of
Darts-clone: Yata et al.) whose leaves are offsets into the replacement strings that follow, each ended by a zero byte.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenization.errors import TokenizationError, native_errors

Units = npt.NDArray[np.uint32]

_LABEL = np.uint32((1 << 31) | 0xFF)
_VALUE = np.uint32((1 << 31) - 1)


class ModelType(IntEnum):
    """Segmentation algorithm of a model."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class PieceType(IntEnum):
    """Purpose of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class ModelPiece:
    """A vocabulary entry; its id is its index."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model that determine ids; the last four normalize text before it is segmented.

    Attributes:
        charsmap: a table from strings to strings, as SentencePiece compiles it; empty if nothing is mapped.
        remove_extra_whitespaces: strip spaces at both ends, collapse runs of spaces.
        escape_whitespaces: replace a space by U+2581.
    """

    pieces: tuple[ModelPiece, ...]
    type: ModelType
    byte_fallback: bool
    treat_whitespace_as_suffix: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def looks_like_model(content: bytes) -> bool:
    """True if content begins with a piece whose first field is its text, as in every model and in no plain text."""
    return len(content) > 3 and content[0] == content[2] == 0x0A and content[3] + 2 <= content[1] < 128


def parse_model(content: bytes, name: str) -> SentencePieceModel:
    """Read a model; raise `TokenizationError` if it is truncated or its content is invalid."""
    with native_errors("SentencePiece models cannot be parsed", remedy="Upgrade protobuf: pip install -U protobuf."):
        from google.protobuf.message import DecodeError
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    try:
        return _checked(ModelProto.FromString(content))
    except (DecodeError, ValueError) as error:
        reason = "it is cut off or damaged" if isinstance(error, DecodeError) else error
        raise TokenizationError(
            f"{name} is not a SentencePiece model that can be read: {reason}. Download it again."
        ) from error


def _checked(proto: Any) -> SentencePieceModel:
    pieces = tuple(ModelPiece(piece.piece, piece.score, PieceType(piece.type)) for piece in proto.pieces)
    if not pieces:
        raise ValueError("it has no pieces")
    for number, piece in enumerate(pieces):
        # protobuf returns a string that is not UTF-8 as bytes.
        is_text = isinstance(piece.text, str) and piece.text and "\0" not in piece.text
        if not is_text or not math.isfinite(piece.score):
            raise ValueError(f"piece {number} is {piece.text!r} with the score {piece.score}")
    texts = {piece.text for piece in pieces}
    if len(texts) < len(pieces):
        raise ValueError("two of its pieces are equal")
    if sum(piece.type is PieceType.UNKNOWN for piece in pieces) != 1:
        raise ValueError("it should have one unknown piece")
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.byte_fallback and any(f"<0x{byte:02X}>" not in texts for byte in range(256)):
        raise ValueError("it falls back to bytes and lacks some of them")
    if normalizer.precompiled_charsmap:
        check_charsmap(normalizer.precompiled_charsmap)
    return SentencePieceModel(
        pieces=pieces,
        type=ModelType(trainer.model_type),
        byte_fallback=trainer.byte_fallback,
        treat_whitespace_as_suffix=trainer.treat_whitespace_as_suffix,
        charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
        escape_whitespaces=normalizer.escape_whitespaces,
    )


def check_charsmap(content: bytes) -> None:
    """Follow every path of the trie.

    Raise `ValueError` if a path or a replacement leads outside the table, or a replacement is not UTF-8.
    """
    units, strings = _parts(content)
    values = _leaves(units)
    if not values.size:
        return
    if not strings.endswith(b"\0") or int(values.max()) >= len(strings):
        raise ValueError("its character map leads outside its strings")
    strings.decode("utf-8")
    if (np.frombuffer(strings, dtype=np.uint8)[values] & 0xC0 == 0x80).any():
        raise ValueError("its character map leads into the middle of a character")


def _parts(content: bytes) -> tuple[Units, bytes]:
    """The units of the trie, and the strings after it."""
    if len(content) < 4:
        raise ValueError("its character map is cut off")
    (size,) = struct.unpack_from("<I", content)
    if size % 4 or not 4 <= size <= len(content) - 4:
        raise ValueError("its character map has the wrong size")
    units = np.frombuffer(content, dtype="<u4", count=size // 4, offset=4).astype(np.uint32)
    return units, content[4 + size :]


def _leaves(units: Units) -> Units:
    """Values of all leaves reachable from the root."""
    labels = np.arange(1, 256, dtype=np.uint32)
    is_seen = np.zeros(units.size, dtype=bool)
    values = []
    nodes = np.zeros(1, dtype=np.uint32)
    while nodes.size:
        is_seen[nodes] = True
        found = units[nodes]
        # Base index of each node's children: the node's own index XOR its offset.
        bases = nodes ^ _offsets(found)
        if int((bases | np.uint32(0xFF)).max()) >= units.size:
            raise ValueError("its character map leads outside its trie")
        values.append(units[bases[(found >> np.uint32(8)) & np.uint32(1) == 1]] & _VALUE)
        children = bases[:, None] ^ labels
        nodes = np.unique(children[(units[children] & _LABEL) == labels])
        nodes = nodes[~is_seen[nodes]]
    return np.concatenate(values)


def _offsets(units: Units) -> Units:
    shift = (units & np.uint32(1 << 9)) >> np.uint32(6)
    return (units >> np.uint32(10)) << shift
