"""Sample of the texts of a corpus, and what the saved tokenizer and the ids make of it when the corpus is complete."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenization import CannotEncode, Tokenizer
from tokenization.losses import characters, lost_characters, saved_difference
from toolkit.core.errors import UserError
from toolkit.preprocess.writer.ledger import TextLosses

_FILE = "sample.jsonl"
_MOST_TEXTS = 2048


def keep_sample(folder: Path, texts: Sequence[str]) -> None:
    """Note texts of a group for `look_at_sample`."""
    if not texts:
        return
    # The end of a line comes first: a line that a killed process left unfinished spoils no other.
    with (folder / _FILE).open("a", encoding="utf-8") as file:
        file.write("".join(f"\n{json.dumps(text)}" for text in texts))


def look_at_sample(groups: Path, tokenizer: Tokenizer) -> TextLosses:
    """Encode and decode the texts that were noted; UserError where the saved tokenizer gives other ids for one."""
    texts = list[str]()
    for file in sorted(groups.glob(f"*/{_FILE}")):
        for line in file.read_text(encoding="utf-8").split("\n"):
            with suppress(json.JSONDecodeError):
                texts.append(json.loads(line))
    # What was resumed was noted twice.
    texts = list(dict.fromkeys(texts))
    texts = texts[:: -(-len(texts) // _MOST_TEXTS) or 1]
    encoded = dict[str, npt.NDArray[np.uint32]]()
    for text in texts:
        with suppress(CannotEncode):  # The sample may have cut a word of which the rest has no token.
            encoded[text] = tokenizer.encode_batch([text])[0]
    if (difference := saved_difference(tokenizer, encoded)) is not None:
        raise UserError(
            f"the tokenizer folder of this corpus would give other ids than its documents have: {difference}. "
            "No corpus.json was written. Give a tokenizer.json that was made of this tokenizer: its ids are its own."
        )
    lost, sampled = Counter[str](), 0
    for text, ids in encoded.items():
        lost += lost_characters(tokenizer, text, ids)
        sampled += characters(text).total()
    return TextLosses(sampled, lost)
