"""Checks of a tokenizer whose results are kept in the cache folder, so that each is made only once.

They depend on the tokenizer's content and on the versions of the libraries: with others they are made again. A cache
folder that cannot be written only costs time.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from tokenization import Tokenizer
from tokenization.special_tokens import CONFIGURATION_FILES, ROLES
from tokenization.transformers_comparison import transformers_differences
from toolkit.core.files import atomic_write, cache_folder


class _CachedResult:
    """A JSON value in the cache folder, which belongs to a description of what it was made from."""

    def __init__(self, name: str, description: dict[str, Any]) -> None:
        self._key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
        self._path = cache_folder() / f"{name}-{self._key[:16]}.json"

    def read(self) -> Any:
        """The value; None if there is none."""
        try:
            kept = json.loads(self._path.read_bytes())
            return kept["value"] if kept["key"] == self._key else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, value: Any) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, json.dumps({"key": self._key, "value": value}))


class Proof(_CachedResult):
    """That the fast backend gave the reference's ids on the text of every vocabulary entry.

    The value holds the characters of Unicode on which the two do not agree. That they agree on an input is checked for
    every input.

    Args:
        tokenizer: the reference.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        libraries = ("gigatoken", "tokenizers", "tiktoken", "sentencepiece")
        super().__init__(
            "fast-backend",
            {
                "tokenizer": tokenizer.source_digest,
                "parse_special_text": tokenizer.rules.parse_special_text,
                "libraries": [version(library) for library in libraries],
            },
        )

    def read(self) -> Sequence[str] | None:
        """The characters that the two backends do not agree on; None where nothing is proven."""
        value = super().read()
        return list(value) if isinstance(value, str) else None

    def write(self, value: Sequence[str]) -> None:
        """Keep a proof."""
        super().write("".join(value))


def ids_that_differ_in_transformers(tokenizer: Tokenizer) -> list[str]:
    """How the ids of `AutoTokenizer`, and so those of Megatron-LM, differ; one sentence each.

    Nothing is compared where there is no configuration beside the vocabulary, or one that changes nothing: the general
    class of transformers with names of special tokens alone, as the toolkit writes it.
    """
    folder = tokenizer.folder
    if folder is None:
        return []
    configurations = {name: folder / name for name in (*CONFIGURATION_FILES, "config.json")}
    contents = {name: path.read_text("utf-8", "replace") for name, path in configurations.items() if path.is_file()}
    if not contents or _changes_nothing(contents):
        return []
    cached = _CachedResult(
        "transformers-ids",
        {"tokenizer": tokenizer.source_digest, "files": contents, "transformers": version("transformers")},
    )
    known = cached.read()
    if isinstance(known, list):
        return list(map(str, known))
    backend = tokenizer.backend
    differences = transformers_differences(
        folder, encode=lambda text: backend.encode(text).ids, ids=backend.get_vocab(with_added_tokens=True)
    )
    cached.write(differences)
    return differences


def _changes_nothing(contents: Mapping[str, str]) -> bool:
    names = {f"{role}_token" for role in ROLES} | {"additional_special_tokens", "extra_special_tokens"}
    known = {"tokenizer_class", "clean_up_tokenization_spaces", *names}
    config = json.loads(contents.get("tokenizer_config.json", "{}"))
    is_general = config.get("tokenizer_class") == "PreTrainedTokenizerFast"
    return set(contents) == {"tokenizer_config.json"} and is_general and set(config) <= known
