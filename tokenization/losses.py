"""Tokenization losses: characters that cannot be recovered from ids, and ids that the saved files do not reproduce."""

import unicodedata
from collections import Counter
from collections.abc import Mapping

import numpy as np

from tokenization.backend import byte_level_bytes, is_byte_level
from tokenization.comparison import first_difference, joined
from tokenization.errors import Difference
from tokenization.reference import HuggingFaceReference, Ids
from tokenization.special_tokens import SpecialTextCounter
from tokenization.tokenizer import Tokenizer


def characters(text: str) -> Counter[str]:
    """Counts of the letters, digits and signs of a text.

    Ignores what tokenizers may normalize away: case, accents, compatibility forms, white space and control characters.
    """
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    counts = Counter(folded)
    return Counter({char: count for char, count in counts.items() if unicodedata.category(char)[0] not in "CMZ"})


def lost_characters(tokenizer: Tokenizer, text: str, ids: Ids) -> Counter[str]:
    """The `characters` of a text that cannot be recovered from its ids; `ids` are from `encode_batch`."""
    return characters(text) - characters(_read(tokenizer, ids))


def saved_difference(tokenizer: Tokenizer, encoded: Mapping[str, Ids]) -> Difference | None:
    """First difference between ids from `encode_batch` and ids from the saved files; None if all are equal."""
    from tokenizers import Tokenizer as Backend

    # Tokens such as a new mask are special in a saved tokenizer, but not in a text that is encoded here.
    newly_special = SpecialTextCounter(tokenizer.newly_special)
    texts = [text for text in encoded if not newly_special.is_in(text)]
    end, frame = tokenizer.appended_ids, tokenizer.frame
    content = tokenizer.files["tokenizer.json"]
    saved = tokenizer.backend if content is tokenizer.converted_form else Backend.from_buffer(content)
    saved.encode_special_tokens = not tokenizer.rules.parse_special_text
    num_framing = len(frame.front) + len(frame.back) - end.size
    found = (
        np.concatenate([ids, end]) if ids.size > num_framing else end[:0]
        for ids in HuggingFaceReference(saved).encode(texts)
    )
    return first_difference(texts, joined(encoded[text] for text in texts), joined(found))


def _read(tokenizer: Tokenizer, ids: Ids) -> str:
    """Text of the ids, without their frame and unknown tokens."""
    frame, backend = tokenizer.frame, tokenizer.backend
    inner = ids[len(frame.front) : ids.size - len(frame.back)]
    kept = inner[inner != tokenizer.unknown_id].tolist() if tokenizer.unknown_id is not None else inner.tolist()
    if not is_byte_level(backend):
        return str(backend.decode(kept, skip_special_tokens=False))
    # Bypasses the decoder, if there is one, which might do more.
    added = backend.get_added_tokens_decoder()
    tokens = ((token_id, str(backend.id_to_token(token_id))) for token_id in kept)
    contents = (text.encode() if token_id in added else byte_level_bytes(text) for token_id, text in tokens)
    return b"".join(contents).decode("utf-8", "replace")
