"""Damage at random: what a test hands to a reader that must refuse it, or read it, and nothing else."""

from typing import Any

import numpy as np

_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**40, 0.5, 1e300, "", "\x00", "ü" * 50, "../x", "/",
    "a" * 5000, "0" * 64, [], [[]], {}, {"": None}, [None] * 50,
)  # fmt: skip


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """One to four changes: bits, bytes, whole runs of zeros or ones, pieces cut out, doubled, moved or made up."""
    damaged = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        size = len(damaged)
        first, second = sorted(generator.integers(0, size + 1, 2).tolist())
        short = first + int(generator.integers(0, 9))
        kind = int(generator.integers(0, 8))
        if kind == 0 and size:
            damaged[min(first, size - 1)] ^= 1 << int(generator.integers(0, 8))
        elif kind == 1 and size:
            damaged[min(first, size - 1)] = int(generator.integers(0, 256))
        elif kind == 2:
            damaged[first:short] = generator.bytes(len(damaged[first:short]))
        elif kind == 3:
            damaged[first:short] = bytes([int(generator.choice([0, 255]))]) * len(damaged[first:short])
        elif kind == 4:
            del damaged[first:short]
        elif kind == 5:
            damaged[first:first] = damaged[first:short]
        elif kind == 6:
            damaged[first:first] = generator.bytes(int(generator.integers(1, 9)))
        else:
            del damaged[second:]
    return bytes(damaged)


def mutated_tree(tree: Any, generator: np.random.Generator) -> Any:
    """A copy of plain data (as JSON has it) with one value, somewhere, replaced, removed, doubled or renamed."""
    if isinstance(tree, dict) and tree and generator.random() < 0.9:
        key = list(tree)[int(generator.integers(0, len(tree)))]
        draw = generator.random()
        if draw < 0.1:
            return {name: value for name, value in tree.items() if name != key}
        if draw < 0.2:
            return {**tree, f"{key}s": tree[key]}
        return {**tree, key: mutated_tree(tree[key], generator)}
    if isinstance(tree, list) and tree and generator.random() < 0.9:
        at, draw = int(generator.integers(0, len(tree))), generator.random()
        if draw < 0.1:
            return tree[:at] + tree[at + 1 :]
        if draw < 0.2:
            return [*tree[:at], tree[at], *tree[at:]]
        return [*tree[:at], mutated_tree(tree[at], generator), *tree[at + 1 :]]
    if isinstance(tree, int) and generator.random() < 0.5:
        return tree + int(generator.integers(-3, 4))
    return _ODD_VALUES[int(generator.integers(0, len(_ODD_VALUES)))]
