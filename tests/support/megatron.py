"""Pairs as Megatron-LM writes them, by a writer made here from its published layout."""

import struct
from pathlib import Path

Documents = list[list[list[int]]]
"""Documents of sentences of ids; `--split-sentences` gives several sentences."""


def write_pair(prefix: Path, documents: Documents, *, code: int = 8) -> Path:
    """Megatron's builder: each sentence is a sequence, a document ends at the number of sequences so far."""
    letter, width = {1: ("B", 1), 2: ("b", 1), 3: ("h", 2), 4: ("i", 4), 5: ("q", 8), 8: ("H", 2)}[code]
    lengths, boundaries, data = [], [0], b""
    for document in documents:
        for sentence in document:
            data += struct.pack(f"<{len(sentence)}{letter}", *sentence)
            lengths.append(len(sentence))
        boundaries.append(len(lengths))
    pointers = [width * sum(lengths[:number]) for number in range(len(lengths))]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.bin").write_bytes(data)
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries))
    index += struct.pack(f"<{len(lengths)}i{len(lengths)}q", *lengths, *pointers)
    Path(f"{prefix}.idx").write_bytes(index + struct.pack(f"<{len(boundaries)}q", *boundaries))
    return prefix
