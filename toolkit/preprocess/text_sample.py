"""Sample of the texts of a corpus: whether the saved tokenizer gives the same ids, and what is lost in the ids."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tokenization import CannotEncode, Tokenizer
from tokenization.losses import characters, lost_characters, saved_difference
from tokenization.reference import Ids
from toolkit.core.errors import UserError
from toolkit.data import TextEntry

SAMPLED_CHARACTERS = 2048
"""Characters at the start of a text that are examined."""
_FILE = "sample.jsonl"
_MOST_TEXTS, _SHOWN_CHARACTERS = 2048, 8


def keep_sample(folder: Path, texts: Sequence[str]) -> None:
    """Save texts of a group for `look_at_sample`."""
    if not texts:
        return
    with (folder / _FILE).open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(text)}\n" for text in texts)


def look_at_sample(groups: Path, tokenizer: Tokenizer) -> TextEntry:
    """Encode and decode the saved texts; sums over the corpus are left at 0.

    Raises UserError if the saved tokenizer gives other ids for one of them.
    """
    files = sorted(groups.glob(f"*/{_FILE}"))
    # Bounds memory: of ten thousand groups, each gives one text.
    of_each = -(-_MOST_TEXTS // max(1, len(files)))
    noted = ([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files)
    texts = [text for its in noted for text in _spread(list(dict.fromkeys(its)), of_each)]
    encoded, lost, sampled = encode_as_saved(tokenizer, _spread(texts, _MOST_TEXTS)), Counter[str](), 0
    for text, ids in encoded.items():
        lost += lost_characters(tokenizer, text, ids)
        sampled += characters(text).total()
    often = sorted(lost, key=lambda character: (-lost[character], character))
    return TextEntry(
        bytes=0,
        unknown_tokens=0,
        sampled_characters=sampled,
        lost_characters=lost.total(),
        often_lost=" ".join(often[:_SHOWN_CHARACTERS]),
    )


def encode_as_saved(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, Ids]:
    """The ids of texts that can be encoded; UserError if the saved tokenizer gives other ids."""
    encoded = dict[str, Ids]()
    for text in texts:
        with suppress(CannotEncode):  # Cutting a text for the sample may leave a part of a word that has no token.
            encoded[text] = tokenizer.encode_batch([text])[0]
    if (difference := saved_difference(tokenizer, encoded)) is not None:
        raise UserError(
            f"the tokenizer folder of this corpus would give other ids than its documents have: {difference}. "
            "Give a tokenizer.json that was made of this tokenizer: its ids are its own."
        )
    return encoded


def _spread(texts: Sequence[str], most: int) -> Sequence[str]:
    """At most `most` of the texts, evenly spaced."""
    return texts[:: -(-len(texts) // most) or 1]
