"""A little text and a little tokenizer, the same on every machine, for the tests of all packages."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenization import train_bpe

_SUBJECTS = ("The old miller", "A young fox", "My sister", "Nobody in the village", "The captain", "Every teacher")
_VERBS = ("remembers", "paints", "has lost", "will follow", "never doubted", "counts")
_OBJECTS = ("the red door", "seven small boats", "a letter from Orléans", "the river", "his 42 pigeons", "that song")
_ENDINGS = (".", ", and winter comes.", "; so they say!", ", does not he?", " — at last.", ".\n")


def sample_documents(count: int, *, seed: int = 0) -> list[str]:
    """`count` documents of 1 to 12 sentences; some hold line ends, some bytes beyond ASCII."""
    generator = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        picks = generator.integers(0, 6, size=(int(generator.integers(1, 13)), 4)).tolist()
        sentences = (f"{_SUBJECTS[a]} {_VERBS[b]} {_OBJECTS[c]}{_ENDINGS[d]}" for a, b, c, d in picks)
        documents.append(" ".join(sentences))
    return documents


def tiny_tokenizer(folder: Path, *, vocabulary_size: int = 384) -> Path:
    """Train a byte-level BPE on 200 sample documents into `folder` (well under a second); returns `folder`.

    Ids 0, 1, 2 are `<|endoftext|>` (eos), `<|pad|>` and `<|mask|>`.
    """
    return train_bpe(sample_documents(200), vocabulary_size=vocabulary_size, folder=folder)


def split_ids(ids: npt.NDArray[np.unsignedinteger], lengths: npt.NDArray[np.integer]) -> list[list[int]]:
    """The ids of each text of a batch."""
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write each row as a line of JSON; returns `path`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
