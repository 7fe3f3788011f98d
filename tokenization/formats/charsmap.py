"""Compiled character map of a SentencePiece model, and the check that every look-up stays inside it.

The map is a little-endian size, a double-array trie of that many bytes (the layout of Darts-clone: Yata et al.) whose
leaves are positions in what follows: replacement strings, each ended by a zero byte.
"""

import struct

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.uint32]

_LABEL = np.uint32((1 << 31) | 0xFF)
_VALUE = np.uint32((1 << 31) - 1)


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
