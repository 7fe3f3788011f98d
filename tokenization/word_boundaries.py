"""Word boundaries from token ids: which ids begin a word whatever precedes them, and which ids end one.

A word is a run of letters, digits and combining marks, with the space in front of it. Every other character stands
alone: punctuation, symbols, other white space, and the characters of scripts written without spaces (Han, kana,
Thai...), where each token is a word. So two adjacent characters belong to one word if the second is a letter and the
first is a letter or a space; for two adjacent tokens, the last character of one and the first of the other decide.
BERT's tokenizer splits text in the same way, except for symbols outside ASCII and scripts without spaces.

A character whose bytes span several tokens is never split. At its left edge it counts as the last character that its
first token could begin, nearly always one of its script; at its right edge as a letter. A WordPiece token without the
continuation prefix begins a word.
"""

import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenization.errors import UnsupportedTokenizerError
from tokenization.pieces import Pieces
from tokenization.tokenizer import Tokenizer

WORD_RULE = 1
"""Version of the rule above; any change of its result for an id needs a new version."""

# Scripts without spaces, and symbols newer than Unicode 3.2, whose categories are the same in every Python.
_ALONE = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF), (0x20A0, 0x20CF)),
    *((0x2190, 0x245F), (0x2500, 0x2BFF), (0x2E00, 0x312F), (0x31A0, 0x31FF), (0x3400, 0xA4CF), (0xA9E0, 0xA9FF)),
    *((0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F), (0x1F000, 0x3FFFF)),
)
_SAMPLES = (
    "The miller's geese (all 1987 of them) sleep, don't they? Äcker, naïve Œuvres.",
    "Слово и дело: Ένας μυλωνάς μετράει, סיפור ומשפט.",
    "كلمة وجملة جديدة, शब्द और वाक्य, हिन्दी में.",
    "სიტყვა და წინადადება, Բառ ու նախադասություն.",
    "단어와 문장, 中文 句子, 日本語の文.",
)


def word_boundaries(tokenizer: Tokenizer) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two flags of each id, (V,): it begins a word whatever precedes it; it ends one. Special and unused ids do both.

    Raises:
        UnsupportedTokenizerError: on sample texts, tokens and their offsets disagree, as with a BPE that drops spaces.
    """
    begins_V = np.ones(tokenizer.vocabulary_size, dtype=np.bool_)
    ends_V = begins_V.copy()
    is_of_words = type(tokenizer.backend.model).__name__ in ("WordPiece", "WordLevel")
    for token_id, piece in Pieces(tokenizer).by_id.items():
        # Bytes that are not a whole character become surrogates, which count as letters.
        content = piece.content or b"\xff"
        size = 1 + sum(content[0] >= lead for lead in (0xC0, 0xE0, 0xF0))
        first = (content + b"\xbf\xbf\xbf")[:size].decode("utf-8", "surrogateescape")[0]
        last = content[-4:].decode("utf-8", "surrogateescape")[-1]
        begins_V[token_id] = (is_of_words and not piece.is_continued) or not _is_letter(first)
        ends_V[token_id] = last != " " and not _is_letter(last)
    _check(tokenizer, begins_V, ends_V)
    return begins_V, ends_V


@cache
def _is_letter(character: str) -> bool:
    if any(first <= ord(character) <= last for first, last in _ALONE):
        return False
    return not unicodedata.ucd_3_2_0.category(character).startswith(("P", "S", "Z", "Cc"))


def _check(tokenizer: Tokenizer, begins_V: npt.NDArray[np.bool_], ends_V: npt.NDArray[np.bool_]) -> None:
    special = set(tokenizer.all_special_ids)
    for text in _SAMPLES:
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        for (before, (_, stop)), (token, (start, _)) in pairwise(zip(encoding.ids, encoding.offsets, strict=True)):
            borders = pairwise(text[max(stop - 1, 0) : start + 1])
            is_split = not all(_is_letter(right) and (left == " " or _is_letter(left)) for left, right in borders)
            if special.isdisjoint((before, token)) and is_split != (begins_V[token] or ends_V[before]):
                names = " and ".join(repr(tokenizer.backend.id_to_token(token_id)) for token_id in (before, token))
                raise UnsupportedTokenizerError(
                    f"the tokens of this tokenizer do not show where words begin: in {text!r}, {names} are "
                    f'{"two words" if is_split else "one word"}. Mask tokens instead (unit = "token").'
                )
