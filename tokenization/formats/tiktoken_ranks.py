"""tiktoken rank files: parsing, checks, and conversion to the Hugging Face form that gives the same ids.

A rank file has one line per token: its bytes in base64, a space, its rank, which is its id. Inside each piece that the
pattern splits off, tiktoken merges the two neighbors whose joined bytes have the lowest rank, leftmost first.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenization.backend import byte_level_bytes, byte_level_text
from tokenization.comparison import PROBES, check_conversion
from tokenization.errors import CannotEncode, TokenizationError, encoding_errors, native_errors
from tokenization.form_cache import Form, cached_form
from tokenization.reference import HuggingFaceReference, Reference, TokenizerKind
from tokenization.special_tokens import AddedEntry
from tokenization.specs import RankSpec

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

_decode = partial(binascii.a2b_base64, strict_mode=True)

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+")
# Without backtracking: a token contains no space, so it is never retried at another length.
_PLAIN_FILE = re.compile(rb"(?:[A-Za-z0-9+/]++={0,2}+ \d{1,9}+\n)*+(?:[A-Za-z0-9+/]++={0,2}+ \d{1,9}+)?+")


def looks_like_ranks(head: bytes) -> bool:
    """True if the first bytes of a file look like a rank file."""
    return _LINE.fullmatch(head.split(b"\n", 1)[0].rstrip(b"\r")) is not None


def parse_ranks(content: bytes, name: str) -> dict[bytes, int]:
    """Rank of each token, by its bytes; checked to be unique, to cover every byte, and to have no wide gaps."""
    ranks = _plain_ranks(content) or _parse_lines(content, name)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizationError(
            f"{name} has no rank for {len(missing)} of the 256 bytes (the first is {missing[0]:#04x}), so not every "
            "text can be encoded. It may be cut off: download it again."
        )
    if len(set(ranks.values())) < len(ranks):
        raise TokenizationError(
            f"{name} gives one rank to two tokens; ranks are ids and must differ. Download it again."
        )
    if max(ranks.values()) >= 2 * len(ranks):
        raise TokenizationError(
            f"{name} has {len(ranks):,} tokens and the rank {max(ranks.values()):,}. It may be cut off: "
            "download it again."
        )
    return ranks


def _plain_ranks(content: bytes) -> dict[bytes, int] | None:
    """Ranks of a file without anything unusual; None if lines have to be parsed one by one."""
    if _PLAIN_FILE.fullmatch(content) is None:
        return None
    words = content.split()
    try:
        ranks = dict(zip(map(_decode, words[::2]), map(int, words[1::2]), strict=True))
    except binascii.Error:
        return None
    return ranks if len(ranks) == len(words) // 2 and b"" not in ranks else None


def _parse_lines(content: bytes, name: str) -> dict[bytes, int]:
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
                "rank. Download it again."
            )
        if token in ranks:
            raise TokenizationError(
                f"{name}: line {number:,} has the token {token!r} a second time. Download it again."
            )
        ranks[token] = int(rank)
    return ranks


def from_ranks(
    content: bytes, name: str, spec: RankSpec, *, cache_folder: Path | None
) -> tuple[Form, "TiktokenReference"]:
    """A rank file's tokenizer under a spec, in its Hugging Face form, and tiktoken's own backend.

    Error messages call the file `name`. The form is cached in `cache_folder`, unless that is None.
    """
    ranks = parse_ranks(content, name)
    special = spec.special_ids(max(ranks.values()) + 1)
    _check(ranks, special, spec)
    with native_errors(f"the pattern of the tokenizer spec {spec.name} cannot be used", remedy="Correct it."):
        import regex  # a dependency of tiktoken
        import tiktoken

        # An empty piece makes tiktoken panic.
        for text in ("", *PROBES):
            if any(not match.group() for match in regex.finditer(spec.pattern, text, timeout=5)):
                raise ValueError("it matches where there is no character")
        encoding = tiktoken.Encoding(spec.name, pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens=special)

    def convert() -> "tokenizers.Tokenizer":
        with native_errors(f"the pattern of the tokenizer spec {spec.name} cannot be used", remedy="Correct it."):
            from tokenizers import Tokenizer as Backend

            backend = Backend.from_str(_hugging_face_json(ranks, special, spec.pattern))
        backend.encode_special_tokens = True
        reference = TiktokenReference(encoding, HuggingFaceReference(backend))
        check_conversion(name, reference, backend, special_texts=list(special))
        return backend

    described = {"ranks": hashlib.sha256(content).hexdigest(), "pattern": spec.pattern, "special": json.dumps(special)}
    form = cached_form(cache_folder, described, convert)
    form.backend.encode_special_tokens = True
    return form, TiktokenReference(encoding, HuggingFaceReference(form.backend))


def _check(ranks: Mapping[bytes, int], special: Mapping[str, int], spec: RankSpec) -> None:
    used = set(ranks.values())
    for text, token_id in special.items():
        if (content := byte_level_bytes(text)) in ranks and byte_level_text(content) == text:
            raise TokenizationError(
                f"the special token {text!r} of the tokenizer spec {spec.name} is a token of the rank file too. Give "
                "it another text."
            )
        if token_id in used:
            raise TokenizationError(
                f"the special token {text!r} of the tokenizer spec {spec.name} has the id {token_id:,}, which is "
                f"taken: the rank file has {len(ranks):,} tokens. Give the spec that belongs to this file."
            )
    for role, text in spec.roles.items():
        if text not in special:
            raise TokenizationError(
                f"the tokenizer spec {spec.name} names {text!r} as its {role} token and does not list it as special. "
                "Add it to special_tokens."
            )


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every merge of two tokens into a third, in tiktoken's order of preference."""
    merges: list[tuple[str, str]] = []
    for text in sorted(vocabulary, key=vocabulary.__getitem__):
        halves = [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[:cut] in vocabulary and text[cut:] in vocabulary
        ]
        if len(halves) > 1:
            halves.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += halves
    return merges


def _hugging_face_json(ranks: Mapping[bytes, int], special: Mapping[str, int], pattern: str) -> str:
    vocabulary = {byte_level_text(token): rank for token, rank in ranks.items()}
    next_id = max(vocabulary.values()) + 1
    has_gaps = len(vocabulary) != next_id or sorted(special.values()) != list(range(next_id, next_id + len(special)))
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            asdict(AddedEntry(token_id, text, special=True, normalized=False))
            for text, token_id in sorted(special.items(), key=lambda item: item[1])
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            # A piece in the vocabulary becomes that token, whether or not merges lead to it.
            "ignore_merges": True,
            # An added token gets the next free id, unless the model's own vocabulary has it: this preserves gaps.
            "vocab": {**vocabulary, **special} if has_gaps else vocabulary,
            "merges": _merges(vocabulary),
        },
    }
    return json.dumps(content, ensure_ascii=False)


class TiktokenReference:
    """Encodes with tiktoken; strings of special tokens are plain text."""

    kind = TokenizerKind.TIKTOKEN

    def __init__(self, encoding: "tiktoken.Encoding", same_ids: Reference) -> None:
        self._encoding, self._same_ids = encoding, same_ids

    def encode(self, texts: Sequence[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """The ids of each text.

        tiktoken's regular expressions give up on some texts, such as a million spaces in a row; such a text is
        encoded with the Hugging Face form.
        """
        for text in texts:
            try:
                with encoding_errors():
                    ids = self._encoding.encode_to_numpy(text, disallowed_special=())
            except CannotEncode:
                (ids,) = self._same_ids.encode([text])
            yield ids
