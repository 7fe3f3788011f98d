"""Fingerprint of a vocabulary: one hash that does not depend on the file format."""

import hashlib
import struct
from collections.abc import Mapping, Sequence


def _byte_of_character() -> dict[str, int]:
    """The inverse of the printable alphabet in which byte-level BPE files spell bytes (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTES = _byte_of_character()
_TEXTS = {byte: character for character, byte in _BYTES.items()}
# Any other character below U+0180 becomes one that Latin-1 cannot encode; characters above stay, and cannot either.
_LATIN1 = dict.fromkeys(range(384), "ƀ") | {ord(character): chr(byte) for character, byte in _BYTES.items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; UTF-8 where it is not spelled in that alphabet."""
    try:
        return token.translate(_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8")


def byte_level_text(content: bytes) -> str:
    """How a byte-level vocabulary spells these bytes."""
    return content.decode("latin-1").translate(_TEXTS)


def fingerprint(vocabulary: Mapping[int, bytes], roles: Mapping[str, int | None], *, special_ids: Sequence[int]) -> str:
    """Sha256, hex, over every id with its bytes, the ids in a role, and all special ids.

    Args:
        vocabulary: the bytes of each id, the mask token included.
        roles: the id in each role, None where it has none.
        special_ids: all ids that are special.
    """
    digest = hashlib.sha256()
    entries = sorted(vocabulary.items())
    digest.update(b"".join(struct.pack("<II", token_id, len(content)) + content for token_id, content in entries))
    for role in sorted(roles):
        digest.update(f"\n{role}={roles[role]}".encode())
    digest.update(f"\nspecial={sorted(special_ids)}".encode())
    return digest.hexdigest()
