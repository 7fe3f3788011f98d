"""tiktoken rank files: read, checked, and written in the Hugging Face form that gives the same ids.

A rank file has one line per token: its bytes in base64, a space, its rank, which is its id. tiktoken joins, inside
each piece that the pattern splits off, the two neighbours whose joined bytes have the lowest rank, leftmost first.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenization.errors import TokenizationError, native_errors
from tokenization.fingerprint import byte_level_text
from tokenization.formats.conversion_check import PROBES
from tokenization.reference import HuggingFaceReference, Reference, TokenizerKind
from tokenization.specs import RankSpec

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+")


def looks_like_ranks(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a rank file."""
    return _LINE.fullmatch(head.split(b"\n", 1)[0].rstrip(b"\r")) is not None


def parse_ranks(content: bytes, name: str) -> dict[bytes, int]:
    """The rank of each token, by its bytes.

    Raises:
        TokenizationError: a line that is not base64 and a number, a token or a rank twice, a byte without a rank, or
            ranks with wide gaps.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        text, _, rank = line.rstrip(b"\r").partition(b" ")
        try:
            token = base64.b64decode(text, validate=True)
        except binascii.Error:
            token = b""
        if not token or not rank.isdigit() or len(rank) > 9:
            raise TokenizationError(
                f"{name} is not a tiktoken rank file: line {number:,} is {line[:60]!r}, not base64, a space and a "
                "rank. Fetch it again."
            )
        if token in ranks:
            raise TokenizationError(f"{name}: line {number:,} has the token {token!r} a second time. Fetch it again.")
        ranks[token] = int(rank)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizationError(
            f"{name} has no rank for {len(missing)} of the 256 bytes (the first is {missing[0]:#04x}), so not every "
            "text can be encoded. It may be cut off: fetch it again."
        )
    if len(set(ranks.values())) < len(ranks):
        raise TokenizationError(f"{name} gives one rank to two tokens; ranks are ids and must differ. Fetch it again.")
    if max(ranks.values()) >= 2 * len(ranks):
        raise TokenizationError(
            f"{name} has {len(ranks):,} tokens and the rank {max(ranks.values()):,}. It may be cut off: fetch it again."
        )
    return ranks


def from_ranks(ranks: Mapping[bytes, int], spec: RankSpec) -> tuple["tokenizers.Tokenizer", "TiktokenReference"]:
    """The tokenizer of a rank file under a spec: in its Hugging Face form, and tiktoken's own encoder.

    Raises:
        TokenizationError: ids that collide, a role without its token, or a pattern that is not a regular expression.
    """
    special = spec.special_ids(max(ranks.values()) + 1)
    _check(ranks, special, spec)
    with native_errors(f"The pattern of the tokenizer spec {spec.name} cannot be used", remedy="Correct it."):
        _refuse_empty_matches(spec.pattern)
        import tiktoken
        from tokenizers import Tokenizer as Backend

        encoding = tiktoken.Encoding(
            spec.name, pat_str=spec.pattern, mergeable_ranks=dict(ranks), special_tokens=special
        )
        backend = Backend.from_str(_hugging_face_json(ranks, special, spec.pattern))
    backend.encode_special_tokens = True
    return backend, TiktokenReference(encoding, HuggingFaceReference(backend))


def _check(ranks: Mapping[bytes, int], special: Mapping[str, int], spec: RankSpec) -> None:
    used, spelled = set(ranks.values()), {byte_level_text(token) for token in ranks}
    for text, token_id in special.items():
        if text in spelled:
            raise TokenizationError(
                f"The special token {text!r} of the tokenizer spec {spec.name} is a token of the rank file too. Give "
                "it another text."
            )
        if token_id in used:
            raise TokenizationError(
                f"The special token {text!r} of the tokenizer spec {spec.name} has the id {token_id:,}, which is "
                f"taken: the rank file has {len(ranks):,} tokens. Give the spec that belongs to this file."
            )
    for role, text in spec.roles.items():
        if text not in special:
            raise TokenizationError(
                f"The tokenizer spec {spec.name} names {text!r} as its {role} token and does not list it as special. "
                "Add it to special_tokens."
            )


def _refuse_empty_matches(pattern: str) -> None:
    """A piece without a character makes tiktoken panic."""
    import regex  # which tiktoken requires

    if any(not match.group() for text in ("", *PROBES) for match in regex.finditer(pattern, text, timeout=5)):
        raise ValueError("it matches where there is no character")


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every way to join two tokens into a third, in the order in which tiktoken prefers them."""
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [(left, right) for left, right in halves if left in ranks and right in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _hugging_face_json(ranks: Mapping[bytes, int], special: Mapping[str, int], pattern: str) -> str:
    vocabulary = {byte_level_text(token): rank for token, rank in ranks.items()}
    next_id = max(ranks.values()) + 1
    if len(ranks) != next_id or sorted(special.values()) != list(range(next_id, next_id + len(special))):
        # An added token gets the next free id, unless the model's own vocabulary has it: so gaps are kept.
        vocabulary.update(special)
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text, token_id in sorted(special.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # A piece that is a token is that token, whether or not merges lead to it.
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": [[byte_level_text(left), byte_level_text(right)] for left, right in _merges(ranks)],
        },
    }
    return json.dumps(content, ensure_ascii=False)


class TiktokenReference:
    """Encodes with tiktoken; strings of special tokens are text like any other."""

    kind = TokenizerKind.TIKTOKEN

    def __init__(self, encoding: "tiktoken.Encoding", same_ids: Reference) -> None:
        self._encoding, self._same_ids = encoding, same_ids

    def encode(self, texts: Sequence[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """The ids of each text.

        tiktoken's regular expressions give up on some texts, such as a million spaces in a row; such a text is
        encoded with the Hugging Face form.
        """
        for text in texts:
            with native_errors("The tokenizer cannot encode this text"):
                ids = self._ids(text)
            if ids is None:
                (ids,) = self._same_ids.encode([text])
            yield ids

    def _ids(self, text: str) -> npt.NDArray[np.uint32] | None:
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            raise
        except ValueError:
            return None
        except BaseException as error:
            # Versions before 0.12 panic instead.
            if type(error).__name__ != "PanicException":
                raise
            return None
