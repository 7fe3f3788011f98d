"""Choice of the mask token: the one the tokenizer names, else a reserved slot, else a new id."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tokenization.errors import TokenizationError

_RESERVED = ("<|reserved_special_token_", "[unused")
_NEW_TEXTS = ("<mask>", "<|mask|>", "[MASK]", "<|toolkit_mask|>")


class MaskOrigin(StrEnum):
    """Origin of a mask token."""

    NAMED = "named by the tokenizer"
    RESERVED = "first reserved slot of the vocabulary"
    APPENDED = "appended to the vocabulary"
    CHOSEN = "chosen by the user"


@dataclass(frozen=True)
class MaskToken:
    """The mask token of a tokenizer.

    `passed_over` is a token that looks like a mask (`[MASK]`) but was not used, since no file names it.
    """

    id: int
    text: str
    origin: MaskOrigin
    passed_over: str | None = None


def choose_mask(
    policy: str, ids: Mapping[str, int], *, named: str | None, roles: Mapping[str, int], next_id: int
) -> MaskToken:
    """Apply a policy: `auto`, `reserved` (the first reserved slot), `append` (a new id), `token:TEXT` or `id:N`.

    `named` is the text of the mask token that the tokenizer's files name; ids in `roles` cannot be the mask.
    """
    kind, _, value = policy.partition(":")
    if policy == "auto":
        return _automatic(ids, named=named, roles=roles, next_id=next_id)
    if policy == "append":
        return _appended(next(text for text in _NEW_TEXTS if text not in ids), next_id)
    if policy == "reserved":
        if (free := _first_reserved(ids, roles)) is None:
            raise TokenizationError(
                f"the vocabulary ({len(ids):,} tokens) has no reserved slot ({'…, '.join(_RESERVED)}…) for the mask. "
                "Choose a token that exists, or 'auto' (--mask-token)."
            )
        return free
    if kind == "token" and value:
        if value not in ids:
            raise TokenizationError(
                f"the mask token {value!r} is not in the vocabulary ({len(ids):,} tokens). "
                "Use one that is, or 'auto' (--mask-token)."
            )
        chosen = MaskToken(ids[value], value, MaskOrigin.CHOSEN)
    elif kind == "id" and value.isascii() and value.isdigit():
        found = [text for text, token_id in ids.items() if token_id == int(value)]
        if not found:
            raise TokenizationError(
                f"the mask token id {int(value):,} is not in the vocabulary (its ids end at {next_id - 1:,}). "
                "Use one that is, or 'auto' (--mask-token)."
            )
        chosen = MaskToken(int(value), found[0], MaskOrigin.CHOSEN)
    else:
        raise TokenizationError(
            f"invalid value for --mask-token: expected auto, reserved, append, token:TEXT or id:N, got {policy!r}."
        )
    for role, token_id in roles.items():
        if token_id == chosen.id:
            raise TokenizationError(
                f"the token {chosen.text!r} (id {chosen.id}) cannot be the mask: it is the tokenizer's {role} token. "
                "Choose another one (--mask-token)."
            )
    return chosen


def _automatic(ids: Mapping[str, int], *, named: str | None, roles: Mapping[str, int], next_id: int) -> MaskToken:
    if named is not None:
        return MaskToken(ids[named], named, MaskOrigin.NAMED) if named in ids else _appended(named, next_id)
    lookalike = next((text for text in _NEW_TEXTS if text in ids), None)
    if (free := _first_reserved(ids, roles)) is not None:
        return replace(free, passed_over=lookalike)
    return _appended(next(text for text in _NEW_TEXTS if text not in ids), next_id, passed_over=lookalike)


def _first_reserved(ids: Mapping[str, int], roles: Mapping[str, int]) -> MaskToken | None:
    taken = set(roles.values())
    firsts = {reserved[0] for reserved in _RESERVED}
    free = [
        (token_id, text)
        for text, token_id in ids.items()
        if text[:1] in firsts and text.startswith(_RESERVED) and token_id not in taken
    ]
    if not free:
        return None
    token_id, text = min(free)
    return MaskToken(token_id, text, MaskOrigin.RESERVED)


def _appended(text: str, next_id: int, *, passed_over: str | None = None) -> MaskToken:
    return MaskToken(next_id, text, MaskOrigin.APPENDED, passed_over)
