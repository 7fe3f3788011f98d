"""Parser of SentencePiece `.model` files (protocol buffers) that checks every length, type and look-up.

The library itself trusts a file more than it should: damaged tables can end the process. So a file is read here
first, and only one that holds together is handed on. Field numbers are those of sentencepiece_model.proto.

The compiled character map in it is a little-endian size, a double-array trie of that many bytes (the layout of
Darts-clone: Yata et al.) whose leaves are positions in what follows: replacement strings, each ended by a zero byte.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenization.errors import TokenizationError

Value = int | bytes
_Default = TypeVar("_Default", int, bytes)
Units = npt.NDArray[np.uint32]

_LABEL = np.uint32((1 << 31) | 0xFF)
_VALUE = np.uint32((1 << 31) - 1)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ModelType(IntEnum):
    """How a model cuts text."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class NormalizerSpec:
    """How text is changed before it is cut.

    Attributes:
        charsmap: a table from strings to strings, as SentencePiece compiles it; empty where nothing is mapped.
        add_dummy_prefix: a space is put in front.
        remove_extra_whitespaces: spaces at the ends go, runs of spaces become one.
        escape_whitespaces: a space becomes U+2581.
    """

    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model that decide ids."""

    pieces: tuple[Piece, ...]
    type: ModelType = ModelType.UNIGRAM
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    normalizer: NormalizerSpec = field(default_factory=NormalizerSpec)


def looks_like_model(content: bytes) -> bool:
    """Whether a file begins with a piece, as every model does and text does not."""
    try:
        number, value = next(_fields(content[: 1 << 16] if len(content) > 1 << 16 else content))
        return number == 1 and isinstance(value, bytes) and any(inner == 1 for inner, _ in _fields(value))
    except (StopIteration, ValueError):
        return False


def parse_model(content: bytes, name: str) -> SentencePieceModel:
    """Read a model.

    Raises:
        TokenizationError: it is cut off, or holds what no model can.
    """
    try:
        return _model(content)
    except (ValueError, struct.error) as error:
        raise TokenizationError(
            f"{name} is not a SentencePiece model that can be read: {error}. Download it again."
        ) from error


def _model(content: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(content):
        if number == 1:
            pieces.append(_piece(_message(value), len(pieces)))
        elif number == 2:
            trainer.update(_message(value))
        elif number == 3:
            normalizer.update(_message(value))
    if not pieces:
        raise ValueError("it has no pieces")
    texts = {piece.text for piece in pieces}
    if len(texts) < len(pieces):
        raise ValueError("two of its pieces are equal")
    if sum(piece.type is PieceType.UNKNOWN for piece in pieces) != 1:
        raise ValueError("it should have one unknown piece")
    byte_fallback = bool(_field(trainer, 35, 0))
    if byte_fallback and any(f"<0x{byte:02X}>" not in texts for byte in range(256)):
        raise ValueError("it falls back to bytes and lacks some of them")
    model = SentencePieceModel(
        pieces=tuple(pieces),
        type=ModelType(_field(trainer, 3, 1)),
        byte_fallback=byte_fallback,
        treat_whitespace_as_suffix=bool(_field(trainer, 24, 0)),
        normalizer=NormalizerSpec(
            charsmap=_field(normalizer, 2, b""),
            add_dummy_prefix=bool(_field(normalizer, 3, 1)),
            remove_extra_whitespaces=bool(_field(normalizer, 4, 1)),
            escape_whitespaces=bool(_field(normalizer, 5, 1)),
        ),
    )
    if model.normalizer.charsmap:
        check_charsmap(model.normalizer.charsmap)
    return model


def _piece(message: dict[int, Value], number: int) -> Piece:
    text = _field(message, 1, b"").decode("utf-8")
    (score,) = struct.unpack("<f", _field(message, 2, bytes(4)))
    if not text or "\0" in text or not math.isfinite(score):
        raise ValueError(f"piece {number} is {text!r} with the score {score}")
    return Piece(text, score, PieceType(_field(message, 3, 1)))


def _field(message: dict[int, Value], key: int, default: _Default) -> _Default:
    value = message.get(key, default)
    if not isinstance(value, type(default)):
        raise ValueError(f"field {key} is {'a number' if isinstance(value, int) else 'not a number'}")
    return value


def _message(value: Value) -> dict[int, Value]:
    """Fields of a message by number; of a repeated one the last, as in protocol buffers."""
    if not isinstance(value, bytes):
        raise ValueError("a number stands where a message should")
    return dict(_fields(value))


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: a number, or bytes."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(content, position)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"byte {position:,} starts a field of unknown kind")
        if not number or position + size > len(content):
            raise ValueError(f"it breaks off at byte {len(content):,}")
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(content) or shift > 63:
            raise ValueError(f"it breaks off at byte {position:,}")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7


def mapped(content: bytes, text: str) -> str:
    """Apply a checked map to a text: each longest known string is replaced; the rest stays."""
    units, strings = _parts(content)
    found, rest = b"", text.encode("utf-8")
    while rest:
        size, value = _longest(units, rest)
        if value is None:
            size = len(rest.decode("utf-8")[0].encode("utf-8"))
            found += rest[:size]
        else:
            found += strings[value : strings.index(b"\0", value)]
        rest = rest[size:]
    return found.decode("utf-8")


def _longest(units: Units, text: bytes) -> tuple[int, int | None]:
    """Length of the longest string of the trie that a text begins with, and its value; None where there is none."""
    size, value = 0, None
    position = int(_offsets(units[:1])[0])
    for number, byte in enumerate(text, start=1):
        position ^= byte
        unit = units[position]
        if unit & _LABEL != byte:
            break
        position ^= int(_offsets(unit[None])[0])
        if int(unit) >> 8 & 1:
            size, value = number, int(units[position] & _VALUE)
    return size, value


def check_charsmap(content: bytes) -> None:
    """Follow every path of the trie.

    Raises:
        ValueError: a path or a replacement leads outside the table, or a replacement is not UTF-8.
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
    """The units of the trie, and the strings behind it."""
    if len(content) < 4:
        raise ValueError("its character map is cut off")
    (size,) = struct.unpack_from("<I", content)
    if size % 4 or not 4 <= size <= len(content) - 4:
        raise ValueError("its character map has the wrong size")
    units = np.frombuffer(content, dtype="<u4", count=size // 4, offset=4).astype(np.uint32)
    return units, content[4 + size :]


def _leaves(units: Units) -> Units:
    """The values of all leaves that can be reached from the root."""
    labels = np.arange(1, 256, dtype=np.uint32)
    is_seen = np.zeros(units.size, dtype=bool)
    values = []
    nodes = np.zeros(1, dtype=np.uint32)
    while nodes.size:
        is_seen[nodes] = True
        found = units[nodes]
        # Where the children of each node are: its own place, and how far they are from there.
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
