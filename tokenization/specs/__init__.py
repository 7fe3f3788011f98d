"""Tokenizer specs: the parts missing from a tiktoken rank file, namely how text is split and which ids are special.

Keys of a file, all optional except `pattern` and the source of the ranks:

    about            one line for human readers
    scheme           the name of a shipped spec that the other keys override
    pattern          the regular expression whose matches are encoded one by one
    special_tokens   a list, whose ids follow the ranks, or a table text = id
    reserved         further special tokens with a number in them: {text = "<|slot_{}|>", first_number = 0, total = 256}
    bos eos unk sep pad cls mask     the special token with that role; "" for none
    ranks            path of the rank file, relative to the spec's folder; or {hub, file, sha256}; or {url, sha256}
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tokenization.errors import TokenizationError
from tokenization.special_tokens import ROLES

__all__ = ["DEFAULT_SCHEME", "RankFile", "RankSpec", "Reserved", "read_spec", "shipped_names", "shipped_spec"]

DEFAULT_SCHEME = "llama3"

_KEYS = {"about", "scheme", "pattern", "special_tokens", "reserved", "ranks", *ROLES}
_MOST_SPECIAL = 100_000


@dataclass(frozen=True)
class RankFile:
    """Location of a rank file: a path, a file of a hub repository, or a URL; `sha256` identifies the content."""

    path: Path | None = None
    hub: str | None = None
    file: str | None = None
    url: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Reserved:
    """Special tokens with a number in `text`, counted up from `first_number` until there are `total` special tokens."""

    text: str
    first_number: int
    total: int


@dataclass(frozen=True)
class RankSpec:
    """A scheme for rank files, and the location of its own rank file, if any; `name` may be the path of a spec.

    `special_tokens` are texts whose ids follow the ranks, or a mapping from text to id.
    """

    name: str
    pattern: str
    special_tokens: tuple[str, ...] | Mapping[str, int]
    reserved: Reserved | None
    roles: Mapping[str, str]
    ranks: RankFile | None

    def special_ids(self, next_id: int) -> dict[str, int]:
        """Id of every special token, by text; `next_id` is the highest rank + 1."""
        if isinstance(self.special_tokens, Mapping):
            ids = dict(self.special_tokens)
            next_id = max([next_id, *(token_id + 1 for token_id in ids.values())])
        else:
            ids = {text: next_id + number for number, text in enumerate(self.special_tokens)}
            next_id += len(ids)
        if self.reserved is not None:
            for number in range(self.reserved.total - len(ids)):
                ids[self.reserved.text.format(self.reserved.first_number + number)] = next_id + number
        return ids


def shipped_names() -> list[str]:
    """Names of the specs that come with this package."""
    files = resources.files("tokenization.specs").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


@cache
def shipped_spec(name: str) -> RankSpec:
    """The shipped spec of this name, one of `shipped_names()`."""
    text = (resources.files("tokenization.specs") / f"{name}.toml").read_text(encoding="utf-8")
    return _spec(name, tomllib.loads(text), folder=None)


def read_spec(path: Path) -> RankSpec:
    """Read a user's own spec file."""
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise TokenizationError(
            f"{path} cannot be read: {error.strerror}. Allow access to it, or give another spec."
        ) from error
    except (ValueError, RecursionError) as error:
        raise TokenizationError(
            f"{path} is not a tokenizer spec: it is not TOML: {error}. Correct it there."
        ) from error
    return _spec(str(path), content, folder=path.parent)


def _spec(name: str, content: dict[str, Any], *, folder: Path | None) -> RankSpec:
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise TokenizationError(
            f"{name} is not a tokenizer spec: unknown key {unknown[0]!r}. "
            f"Known keys: {', '.join(sorted(_KEYS))}. Correct it, or leave it out."
        )
    base = _base(name, content)
    pattern = _text(name, content, "pattern") or (base.pattern if base else None)
    if pattern is None:
        raise TokenizationError(
            f"{name} says neither how text is split (pattern) nor which shipped spec it follows "
            f"(scheme, one of {', '.join(shipped_names())})."
        )
    roles = dict(base.roles) if base else {}
    for role in ROLES:
        text = _text(name, content, role)
        if text is not None:
            roles[role] = text
    roles = {role: text for role, text in roles.items() if text}
    special = _special_tokens(name, content, base)
    reserved = _reserved(name, content["reserved"]) if "reserved" in content else None
    if base is not None and "special_tokens" not in content and reserved is None:
        reserved = base.reserved
    ranks = _ranks(name, content["ranks"], folder) if "ranks" in content else base.ranks if base else None
    return RankSpec(name, pattern, special, reserved, roles, ranks)


def _text(name: str, content: dict[str, Any], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise TokenizationError(f"{name}: {key} should be a text and is {value!r}. Correct it.")
    return value


def _base(name: str, content: dict[str, Any]) -> RankSpec | None:
    scheme = _text(name, content, "scheme")
    if scheme is None:
        return None
    if scheme not in shipped_names():
        raise TokenizationError(f"{name}: unknown scheme {scheme!r}. Available schemes: {', '.join(shipped_names())}.")
    return shipped_spec(scheme)


def _special_tokens(name: str, content: dict[str, Any], base: RankSpec | None) -> tuple[str, ...] | Mapping[str, int]:
    found = content.get("special_tokens", base.special_tokens if base else ())
    if isinstance(found, Mapping):
        is_right = all(text and type(value) is int and 0 <= value < 1 << 31 for text, value in found.items())
        if is_right and len(set(found.values())) == len(found):
            return found
    elif isinstance(found, list | tuple):
        is_right = all(isinstance(text, str) and text for text in found)
        if is_right and len(set(found)) == len(found):
            return tuple(found)
    raise TokenizationError(
        f"{name}: special_tokens should be a list of different texts, or a table of texts with different ids."
    )


def _reserved(name: str, content: object) -> Reserved:
    if isinstance(content, dict) and set(content) == {"text", "first_number", "total"}:
        text, first, total = content["text"], content["first_number"], content["total"]
        is_right = isinstance(text, str) and text.count("{}") == 1 and text.count("{") == text.count("}") == 1
        if is_right and type(first) is int and type(total) is int and first >= 0 and 0 <= total <= _MOST_SPECIAL:
            return Reserved(text, first, total)
    raise TokenizationError(
        f'{name}: reserved should be like {{text = "<|slot_{{}}|>", first_number = 0, total = 256}}, '
        f"total at most {_MOST_SPECIAL:,}."
    )


def _ranks(name: str, content: object, folder: Path | None) -> RankFile:
    if isinstance(content, str) and content and folder is not None and "\0" not in content:
        return RankFile(path=folder / content)
    if isinstance(content, dict) and all(isinstance(value, str) for value in content.values()):
        keys = set(content) - {"sha256"}
        if keys in ({"hub", "file"}, {"url"}):
            return RankFile(**content)
    raise TokenizationError(
        f"{name}: ranks should be the path of a rank file, or a table {{hub, file, sha256}} or {{url, sha256}}."
    )
