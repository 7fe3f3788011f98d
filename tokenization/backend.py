"""Helpers for a `tokenizers` backend: settings for whole documents, special tokens, vocabulary bytes, fingerprint."""

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenization.errors import TokenizationError, native_errors
from tokenization.special_tokens import AddedEntry, SpecialNames

if TYPE_CHECKING:
    import tokenizers

# Far above any vocabulary size. `tokenizers` iterates over all ids when it writes a file.
_MOST_IDS = 1 << 24


def check_ids(ids: Mapping[str, int]) -> None:
    """Check that a vocabulary's ids are unique and of plausible size."""
    if not ids:
        raise TokenizationError("the tokenizer has an empty vocabulary. Give another one.")
    if max(ids.values()) >= _MOST_IDS:
        text = max(ids, key=ids.__getitem__)
        raise TokenizationError(
            f"the tokenizer gives the token {text!r} the id {ids[text]:,}. Its file may be damaged: download it again."
        )
    if len(set(ids.values())) < len(ids):
        raise TokenizationError(
            "the tokenizer gives one id to two of its tokens. Its file may be damaged: download it again."
        )


def declare_added(backend: "tokenizers.Tokenizer", entries: Sequence[AddedEntry], folder: Path) -> None:
    """Add tokens to a vocabulary, each with the id in its entry; entries are sorted by id."""
    from tokenizers import AddedToken

    for entry in entries:
        flags = {key: value for key, value in vars(entry).items() if key not in ("id", "content")}
        found = backend.id_to_token(entry.id)
        if found is None or found == entry.content:
            backend.add_tokens([AddedToken(entry.content, **flags)])
        if backend.token_to_id(entry.content) != entry.id:
            known = backend.token_to_id(entry.content)
            taken = f"that id is {found!r}" if found is not None else f"the tokenizer would give it {known:,}"
            raise TokenizationError(
                f"{folder}: the configuration files add {entry.content!r} as id {entry.id:,}, but {taken}. Ids of "
                "added tokens have to follow the vocabulary's without gaps. Give the tokenizer.json of this tokenizer."
            )


def settled(backend: "tokenizers.Tokenizer", names: SpecialNames) -> "tokenizers.Tokenizer":
    """Disable truncation, padding and dropout (whole documents, deterministic ids); make named tokens special."""
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    # A mask that is named but not in the vocabulary is appended later, after the ids that texts are encoded with.
    mask = names.roles.get("mask")
    is_missing = mask is not None and backend.token_to_id(mask) is None
    _declare(backend, [text for text in names.texts() if not (is_missing and text == mask)])
    return backend


def completed(backend: "tokenizers.Tokenizer", names: SpecialNames, *, mask_id: int) -> "tokenizers.Tokenizer":
    """Return the backend with every named token special and the mask at its id; `backend` itself is not modified."""
    mask = names.roles["mask"]
    if backend.token_to_id(mask) == mask_id and not undeclared(backend, names.texts()):
        return backend
    ids = backend.get_vocab(with_added_tokens=True) | {mask: mask_id}
    with native_errors("the tokenizer cannot be written as a tokenizer.json"):
        from tokenizers import Tokenizer as Backend

        content = backend.to_str()
        if len(ids) != max(ids.values()) + 1:
            content = _with_all_in_the_model(content, ids)
        complete = Backend.from_str(content)
        _declare(complete, names.texts())
    if complete.token_to_id(mask) != mask_id:
        raise TokenizationError(
            f"the mask token {mask!r} cannot be appended as id {mask_id}: the vocabulary's ids have gaps. "
            "Choose a token that exists (--mask-token)."
        )
    return complete


def is_byte_level(backend: "tokenizers.Tokenizer") -> bool:
    """True if the vocabulary spells bytes in GPT-2's alphabet."""
    parts = (backend.pre_tokenizer, backend.decoder)
    return any(part is not None and b'"ByteLevel"' in part.__getstate__() for part in parts)


def unknown_id(backend: "tokenizers.Tokenizer", form: bytes) -> int | None:
    """Id of the unknown token; None if absent. `form` is the backend's `tokenizer.json`."""
    if type(backend.model).__name__ == "Unigram":  # does not expose it
        stated = re.search(rb'"model":\s*\{\s*"type":\s*"Unigram",\s*"unk_id":\s*(\d+)', form)
        return None if stated is None else int(stated[1])
    token = getattr(backend.model, "unk_token", None)
    return None if token is None else backend.token_to_id(token)


# The alphabet in which byte-level BPE files spell bytes (GPT-2's `bytes_to_unicode`): printable Latin-1 characters
# stand for themselves; the other bytes, in order, are written as the characters from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + rank): byte for rank, byte in enumerate(_OTHERS)}
_TEXTS = {byte: character for character, byte in _BYTES.items()}
# Any other character below U+0180 maps to one that Latin-1 cannot encode; it cannot encode those above either.
_LATIN1 = dict.fromkeys(range(384), "ƀ") | {ord(character): chr(byte) for character, byte in _BYTES.items()}


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token of a byte-level vocabulary; its UTF-8 if it is not spelled in GPT-2's alphabet."""
    try:
        return token.translate(_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8")


def byte_level_text(content: bytes) -> str:
    """Spelling of these bytes in a byte-level vocabulary."""
    return content.decode("latin-1").translate(_TEXTS)


def vocabulary_bytes(backend: "tokenizers.Tokenizer", *, mask: str, mask_id: int) -> dict[int, bytes]:
    """Bytes that each id stands for, including the mask."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()} | {mask}
    is_spelled = is_byte_level(backend)
    ids = backend.get_vocab(with_added_tokens=True) | {mask: mask_id}
    return {
        token_id: byte_level_bytes(text) if is_spelled and text not in added else text.encode("utf-8")
        for text, token_id in ids.items()
    }


def fingerprint(vocabulary: Mapping[int, bytes], roles: Mapping[str, int | None], *, special_ids: Sequence[int]) -> str:
    """Hex SHA-256 of every id with its bytes (including the mask), the id of each role, and all special ids."""
    digest, packed = hashlib.sha256(), struct.Struct("<II").pack
    contents = ((token_id, vocabulary[token_id]) for token_id in sorted(vocabulary))
    digest.update(b"".join([packed(token_id, len(content)) + content for token_id, content in contents]))
    for role in sorted(roles):
        digest.update(f"\n{role}={roles[role]}".encode())
    digest.update(f"\nspecial={sorted(special_ids)}".encode())
    return digest.hexdigest()


def framing_post_processor(
    backend: "tokenizers.Tokenizer", *, front: Sequence[int], back: Sequence[int], between: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """A post-processor for `tokenizer.json` that adds these ids around every text; replaces the existing one.

    In a pair, the first text is followed by `between`, or by `back` if that is None.
    """
    tokens: dict[str, object] = {}

    def special(token_id: int) -> dict[str, object]:
        text = str(backend.id_to_token(token_id))
        tokens[text] = {"id": text, "ids": [token_id], "tokens": [text]}
        return {"SpecialToken": {"id": text, "type_id": 0}}

    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    opening, closing = [*map(special, front), first], [*map(special, back)]
    template = {
        "type": "TemplateProcessing",
        "single": [*opening, *closing],
        "pair": [*opening, *map(special, back if between is None else between), second, *closing],
        "special_tokens": tokens,
    }
    now = {} if backend.post_processor is None else json.loads(backend.post_processor.__getstate__())
    # A byte-level processor changes offsets, not ids.
    kept = [part for part in now.get("processors", [now]) if part.get("type") == "ByteLevel"]
    if not tokens:
        return kept[0] if kept else None
    return {"type": "Sequence", "processors": [*kept, template]} if kept else template


def _with_all_in_the_model(content: str, ids: Mapping[str, int]) -> str:
    """The `tokenizer.json` with added tokens also in the model's vocabulary; unchanged if that vocabulary is a list.

    Without this, an added token would get the next free id when the file is read, which is wrong if ids have gaps.
    """
    parsed = json.loads(content)
    if isinstance(parsed["model"]["vocab"], dict):
        parsed["model"]["vocab"].update(ids)
    return json.dumps(parsed, ensure_ascii=False)


def undeclared(backend: "tokenizers.Tokenizer", texts: Sequence[str]) -> list[str]:
    """The given tokens that the backend does not treat as special."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return [text for text in texts if text not in special]


def _declare(backend: "tokenizers.Tokenizer", texts: Sequence[str]) -> None:
    """Make tokens special, as transformers does with named tokens; a missing one gets the next id."""
    from tokenizers import AddedToken

    new = [AddedToken(text, special=True, normalized=False) for text in undeclared(backend, texts)]
    if new:
        backend.add_special_tokens(new)
