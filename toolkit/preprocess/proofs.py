"""What is proven about the fast encoder and a tokenizer, kept in the cache folder so that it is proven only once.

A proof says that both gave the same ids on the text of every vocabulary entry, and on which characters of Unicode they
do not agree. It belongs to the tokenizer's content and to the versions of the libraries: with others it is made anew.
That they agree on an input is found out for every input.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

from tokenization import Tokenizer
from toolkit.core.files import atomic_write, cache_folder

_LIBRARIES = ("gigatoken", "tokenizers", "tiktoken", "sentencepiece")


class Proof:
    """The place of the proof for one tokenizer, there or not yet.

    Args:
        tokenizer: the reference.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        about = {
            "tokenizer": tokenizer.source_digest,
            "parse_special_text": tokenizer.rules.parse_special_text,
            "libraries": [version(library) for library in _LIBRARIES],
        }
        self._key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        self._path = cache_folder() / f"fast-encoder-{self._key[:16]}.json"

    def read(self) -> Sequence[str] | None:
        """The characters that the two encoders do not agree on; None where nothing is proven."""
        try:
            kept = json.loads(self._path.read_bytes())
            return list(kept["odd_characters"]) if kept["key"] == self._key else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, odd_characters: Sequence[str]) -> None:
        """Keep a proof. Where the cache folder cannot be written, it is made again the next time."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, json.dumps({"key": self._key, "odd_characters": "".join(odd_characters)}))
