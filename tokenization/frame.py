"""Frames: ids around those of a text, such as a beginning and an end; and the file that records them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenization.errors import CannotEncode, encoding_errors

if TYPE_CHECKING:
    import tokenizers

ENCODING_FILE = "encoding.json"
"""File of a saved tokenizer that records how texts were encoded."""
_MOST_TRIED = 100


@dataclass(frozen=True)
class Frame:
    """Ids in front of a text and after it."""

    front: tuple[int, ...] = ()
    back: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{_listed(self.front)} before, {_listed(self.back)} after"


def post_processor_frame(backend: "tokenizers.Tokenizer") -> Frame:
    """The frame that a backend's post-processor adds to every text."""
    if backend.post_processor is None:
        return Frame()
    # Any text with a token of its own shows it: the letter a, unless the vocabulary cannot encode it.
    for text in chain("a", islice(backend.get_vocab(), _MOST_TRIED)):
        with suppress(CannotEncode), encoding_errors():
            framed = backend.encode(text)
            if 0 in (mask := framed.special_tokens_mask):
                break
    else:
        return Frame()
    num_front, num_back = mask.index(0), mask[::-1].index(0)
    return Frame(tuple(framed.ids[:num_front]), tuple(framed.ids[len(mask) - num_back :]))


def read_source(folder: Path) -> str | None:
    """The `source` of the tokenizer saved in a folder; None if unknown."""
    source = _read_encoding(folder).get("source")
    return source if isinstance(source, str) else None


def read_document_frame(folder: Path, backend: "tokenizers.Tokenizer", *, eos_id: int | None) -> Frame:
    """The frame of the documents that a saved tokenizer encoded.

    Earlier versions recorded whether an end was appended, not which one; the eos token is assumed, unless the
    tokenizer ends texts itself. If nothing is recorded, it was appended.
    """
    encoding, own = _read_encoding(folder), post_processor_frame(backend)
    if isinstance(recorded := encoding.get("frame"), dict):
        return Frame(tuple(recorded["front"]), tuple(recorded["back"]))
    if own.back or eos_id is None or not encoding.get("add_eod", True):
        return own
    return Frame(own.front, (eos_id,))


def _read_encoding(folder: Path) -> dict[str, Any]:
    """Content of the file; empty if it is missing or damaged."""
    try:
        content = json.loads((folder / ENCODING_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _listed(ids: tuple[int, ...]) -> str:
    return f"id {', '.join(map(str, ids))}" if ids else "nothing"
