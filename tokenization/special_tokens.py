"""Special tokens: their names in the files beside a `tokenizer.json`, and their strings inside ordinary text.

The role of a token (end of text, padding, mask...) is never guessed from its text: a tokenizer may contain `</s>` and
use it for something else.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenization.errors import TokenizationError

# The order in which transformers adds names that the vocabulary lacks, and so the order of their ids.
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"

CONFIGURATION_FILES = (_CONFIG, _MAP, _ADDED)
"""Files beside a vocabulary that name special tokens and tokens added to it."""


@dataclass(frozen=True)
class SpecialNames:
    """Token text of each assigned role (`roles["eos"]`), and further special tokens without a role."""

    roles: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """Texts of all named tokens, without duplicates, roles first."""
        ordered = [self.roles[role] for role in ROLES if role in self.roles]
        return list(dict.fromkeys([*ordered, *self.extra]))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizationError(f"{path} cannot be read as JSON: {error}. Download it again, or correct it.") from error
    if not isinstance(content, dict):
        raise TokenizationError(f"{path} is invalid: expected a JSON object. Download it again, or correct it.")
    return content


def _text(value: object) -> str | None:
    """Text of a token that is written as a string, or as an object with `content`; None if there is none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def read_tokenizer_class(folder: Path) -> str | None:
    """The tokenizer class that a folder's `tokenizer_config.json` names; None if absent."""
    return _text(_read(folder / _CONFIG).get("tokenizer_class"))


def read_special_names(folder: Path) -> SpecialNames:
    """Read the names in `tokenizer_config.json` and `special_tokens_map.json`, with transformers' precedence."""
    config, names = _read(folder / _CONFIG), _read(folder / _MAP)
    # The map is the older file; it still takes precedence unless the config lists its added tokens.
    ranked = (config, names) if "added_tokens_decoder" in config else (names, config)
    roles = {}
    for role in ROLES:
        found = [text for text in (_text(file.get(f"{role}_token")) for file in ranked) if text is not None]
        if found:
            roles[role] = found[0]
    extra: list[str] = []
    for file in (config, names):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = file.get(key) or []
            values = listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else []
            extra.extend(text for text in map(_text, values) if text is not None)
    for text in (*roles.values(), *extra):
        if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
            raise TokenizationError(
                f"{folder / _CONFIG} or {_MAP} beside it names the token {text!r}, which is not valid text. Correct it."
            )
    return SpecialNames(roles, tuple(dict.fromkeys(extra)))


@dataclass(frozen=True)
class AddedEntry:
    """A token that a file adds to a vocabulary; the names are those of a `tokenizer.json`."""

    id: int
    content: str
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def read_added_tokens(folder: Path, names: SpecialNames) -> list[AddedEntry]:
    """Read `added_tokens_decoder` in `tokenizer_config.json`, else `added_tokens.json`; sorted by id.

    `added_tokens.json` does not say which tokens are special, so `names` do. A `tokenizer.json` lists its own.
    """
    config, added = _read(folder / _CONFIG), _read(folder / _ADDED)
    special = set(names.texts())
    try:
        if "added_tokens_decoder" in config:
            entries = [_added_entry(int(token_id), token) for token_id, token in config["added_tokens_decoder"].items()]
        else:
            entries = [
                AddedEntry(token_id, text, special=text in special, normalized=text not in special)
                for text, token_id in added.items()
            ]
        is_valid = all(type(entry.id) is int and entry.id >= 0 and entry.content for entry in entries)
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise TokenizationError(
            f"{folder / _CONFIG} (added_tokens_decoder) or {_ADDED} beside it: expected the id of each added token. "
            "Download it again, or correct it."
        )
    return sorted(entries, key=lambda entry: entry.id)


def _added_entry(token_id: int, token: Mapping[str, Any]) -> AddedEntry:
    flags = {key: bool(token.get(key)) for key in ("special", "normalized", "lstrip", "rstrip", "single_word")}
    if not isinstance(token["content"], str):
        raise TypeError
    return AddedEntry(token_id, token["content"], **flags)


class SpecialTextCounter:
    """Counts special-token strings (`<|endoftext|>`...) in texts; the longest wins if two start at one place.

    Nearly all text contains none, so a text is first searched for the few prefixes of these strings (`<|`, `[P`...),
    which runs at memory speed.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        longest_first = sorted(set(strings), key=lambda string: (-len(string), string))
        self._openings: Sequence[str] = sorted({string[:2] for string in longest_first})
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def is_in(self, text: str) -> bool:
        """True if one of the strings occurs in a text."""
        return self._pattern is not None and self._may_be_in(text) and self._pattern.search(text) is not None

    def count(self, text: str) -> int:
        """Number of occurrences in a text."""
        return sum(1 for _ in self._pattern.finditer(text)) if self._pattern and self._may_be_in(text) else 0

    def _may_be_in(self, text: str) -> bool:
        for opening in self._openings:  # noqa: SIM110 - a generator takes longer than most searches
            if opening in text:
                return True
        return False
