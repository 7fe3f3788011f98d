"""Input of the fast backend (gigatoken): its `tokenizer.json`, and the texts that the reference encodes instead."""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tokenization.backend import byte_level_text, is_byte_level
from tokenization.errors import FastUnavailable
from tokenization.special_tokens import AddedEntry, SpecialTextCounter
from tokenization.specs import shipped_spec
from tokenization.tokenizer import Tokenizer

# Start of the model, the last entry of a `tokenizer.json`. No string contains this, since its quotes would be escaped.
_MODEL, _VOCABULARY = re.compile(rb',\s*"model":\s*\{'), re.compile(rb'"vocab":\s*\{')

# Long ranges of similar characters: Chinese, Hangul, private use, Tangut, and everything beyond plane 1.
_ALIKE = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0x17000, 0x18D00), (0x20000, 0x110000))
_ONE_IN = 64


def fast_form(tokenizer: Tokenizer) -> bytes:
    """The `tokenizer.json` that gigatoken reads, without a post-processor: the frame of a text is added afterwards.

    Special tokens are left out too if their strings count as plain text.
    """
    kind = type(tokenizer.backend.model).__name__
    if kind != "BPE":
        raise FastUnavailable(f"it does BPE vocabularies, and this one is {kind}")
    content = tokenizer.form
    # The hundreds of thousands of merges after it need not become Python objects.
    place = _found(_MODEL, content, 0).start()
    parsed = json.loads(content[:place] + b"}")
    parsed["post_processor"] = None
    if not tokenizer.rules.parse_special_text:
        parsed["added_tokens"] = [token for token in parsed["added_tokens"] if not token["special"]]
    if cuts_digits(tokenizer):
        parsed["pre_tokenizer"] = parsed["pre_tokenizer"]["pretokenizers"][1]
        parsed["added_tokens"] += [
            asdict(AddedEntry(token_id, digit, special=False, normalized=False))
            for digit in "0123456789"
            if (token_id := tokenizer.backend.token_to_id(digit)) is not None
        ]
    parsed["pre_tokenizer"] = _as_gigatoken_knows_it(parsed["pre_tokenizer"])
    start = _found(_VOCABULARY, content, place).end()
    stand_ins = "".join(
        f"{json.dumps(byte_level_text(bytes([byte])), ensure_ascii=False)}:{token_id},"
        for token_id, byte in enumerate(missing_bytes(tokenizer), start=tokenizer.encoded_vocabulary_size)
    )
    head = json.dumps(parsed, ensure_ascii=False)[:-1]
    return b"".join((head.encode(), content[place:start], stand_ins.encode(), memoryview(content)[start:]))


def _found(expression: re.Pattern[bytes], content: bytes, start: int) -> re.Match[bytes]:
    found = expression.search(content, start)
    assert found is not None
    return found


def cuts_digits(tokenizer: Tokenizer) -> bool:
    """True if digits are split off one by one before byte-level splitting, as in SmolLM2 and StarCoder.

    gigatoken does not support that, but it splits text at added tokens, so the digits become added tokens. The
    reference encodes texts with other numerals.
    """
    match json.loads(tokenizer.backend.pre_tokenizer.__getstate__()) if tokenizer.backend.pre_tokenizer else None:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False},
            ],
        }:
            return all(tokenizer.backend.token_to_id(digit) is not None for digit in "0123456789")
    return False


def missing_bytes(tokenizer: Tokenizer) -> list[int]:
    """Bytes that a byte-level vocabulary has no token for.

    gigatoken needs a token for each, so ids after the vocabulary stand in for them; the reference drops such bytes.
    """
    backend = tokenizer.backend
    if not is_byte_level(backend):
        return []
    return [byte for byte in range(256) if backend.token_to_id(byte_level_text(bytes([byte]))) is None]


def _as_gigatoken_knows_it(pre_tokenizer: Any) -> Any:
    """Replace GPT-2's regular expression, if spelled out, by the one built into byte-level splitting."""
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": expression}},
                {"type": "ByteLevel", "use_regex": False} as level,
            ],
        } if expression == shipped_spec("r50k_base").pattern:
            return {**level, "use_regex": True}
    return pre_tokenizer


def added_tokens(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Strings that always become one token, wherever they occur in a text.

    First those that always send a text to the reference (special, or with rules about neighboring text), then the rest.
    """
    special: list[str] = []
    plain: list[str] = []
    for token in tokenizer.backend.get_added_tokens_decoder().values():
        if token.special and not tokenizer.rules.parse_special_text:
            continue
        has_rules = token.special or token.lstrip or token.rstrip or token.single_word
        (special if has_rules else plain).append(token.content)
    return special, plain


def numerals_for_reference(tokenizer: Tokenizer) -> frozenset[str]:
    """Characters that send a text to the reference if digits are split off: numerals other than ASCII digits."""
    every = map(chr, range(0x80, 0x110000 if cuts_digits(tokenizer) else 0x80))
    return frozenset(character for character in every if unicodedata.category(character)[0] == "N")


def sample_characters() -> Iterator[str]:
    """Sample of Unicode: every character of planes 0 and 1, and one in 64 of long ranges."""
    for code in range(1, 0x110000):
        is_alike = any(first <= code < last for first, last in _ALIKE)
        if not 0xD800 <= code < 0xE000 and (not is_alike or code % _ONE_IN == 0):
            yield chr(code)


class FallbackTexts:
    """Detector of texts that the reference has to encode.

    They contain strings of added tokens, or characters on which the two backends disagree.
    """

    def __init__(self, strings: Sequence[str], characters: Sequence[str]) -> None:
        self._strings = SpecialTextCounter(strings)
        # CPython stores a text with one, two or four bytes per character, depending on the highest one; and character
        # sets of its regular expressions are fast only below U+10000.
        low, high = ([each for each in characters if (each > "\uffff") is is_high] for is_high in (False, True))
        sets = ((1, low), (4, high))
        self._sets = [(width, re.compile(f"[{''.join(map(re.escape, held))}]")) for width, held in sets if held]

    def holds(self, text: str) -> bool:
        """True if the reference has to encode this text."""
        if self._strings.is_in(text):
            return True
        if not self._sets or text.isascii():
            return False
        width = sys.getsizeof(text) // len(text)
        return any(width >= least and found.search(text) is not None for least, found in self._sets)
