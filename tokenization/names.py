"""Which tokens play a role (end of text, padding, mask...), as the files beside a `tokenizer.json` name them.

Nothing is guessed from a token's text: a tokenizer may hold `</s>` and mean something else by it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenization.errors import TokenizationError

# The order in which transformers adds names that the vocabulary lacks, and so the order of their ids.
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"

CONFIGURATION_FILES = (_CONFIG, _MAP)
"""Files beside a vocabulary that name special tokens."""


@dataclass(frozen=True)
class SpecialNames:
    """Text of the token in each role that is filled (`roles["eos"]`), and further special tokens without a role."""

    roles: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """Every named token's text, once each, roles first."""
        ordered = [self.roles[role] for role in ROLES if role in self.roles]
        return list(dict.fromkeys([*ordered, *self.extra]))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizationError(f"{path} cannot be read as JSON: {error}. Fetch it again, or correct it.") from error
    if not isinstance(content, dict):
        raise TokenizationError(
            f"{path} should hold a JSON object and holds another value. Fetch it again, or correct it."
        )
    return content


def _text(value: object) -> str | None:
    """A token is written as its text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def read_tokenizer_class(folder: Path) -> str | None:
    """The class that `tokenizer_config.json` in a folder names, if it does.

    Raises:
        TokenizationError: the file is there and is not a JSON object.
    """
    return _text(_read(folder / _CONFIG).get("tokenizer_class"))


def read_special_names(folder: Path) -> SpecialNames:
    """Read the names in `tokenizer_config.json` and `special_tokens_map.json`, as transformers ranks the two.

    Raises:
        TokenizationError: one of the files is there and is not a JSON object, or names half a character.
    """
    config, names = _read(folder / _CONFIG), _read(folder / _MAP)
    # The map is the older file; it still rules unless the config lists its added tokens.
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
                f"{folder / _CONFIG} or {_MAP} beside it names the token {text!r}, which is no text. Correct it."
            )
    return SpecialNames(roles, tuple(dict.fromkeys(extra)))
