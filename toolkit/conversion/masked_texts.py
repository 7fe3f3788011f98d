"""Tokenizers of exported encoders that read masked texts as in training: the mask stands for a word's tokens.

`tokenizers` splits a text at special tokens before it normalizes the parts, each like a whole text: changes at the
beginning of a text (a leading space, stripped spaces) would also happen after every mask, unlike in training.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenization.comparison import PROBES

if TYPE_CHECKING:
    import tokenizers

_BLANK = "\u2581"
_SENTENCES = (
    "The cat sat on the {}.",
    "The city was {} in the north.",
    "{} is here.",
    "They said ({}) and left.",
)
# Several words: a vocabulary may merge one with punctuation after it, or make the space before it a separate token.
_WORDS = ("mat", "river", "house", "old", "cat", "sun", "water", "book", "door", "red", "part", "a", "I", "in")


def with_mask_as_trained(content: dict[str, Any], mask_id: int) -> tuple[dict[str, Any], str | None]:
    """Change a `tokenizer.json` so that it reads masked texts as in training; other texts keep their ids.

    Also return one sentence on what still differs; None if nothing does.
    """
    trained = _backend(content)
    plain = [trained.encode(text).ids for text in PROBES]
    first_difference = None
    mask = trained.id_to_token(mask_id)
    apart, joined = (len(trained.encode(f"a{gap}{mask}", add_special_tokens=False).ids) for gap in (" ", ""))
    if apart > joined:
        # The space before the mask would be a separate token: the mask absorbs it.
        content = _with_flags(content, mask_id, lstrip=True)
    for form in _forms(content, trained, mask_id):
        backend = _backend(form)
        difference = _difference(trained, backend, mask_id)
        if difference is None and [backend.encode(text).ids for text in PROBES] == plain:
            return form, None
        first_difference = first_difference or difference
    return content, first_difference


def _forms(content: dict[str, Any], trained: "tokenizers.Tokenizer", mask_id: int) -> Iterator[dict[str, Any]]:
    """Candidates that may read masked texts correctly, smallest change first."""
    whole = content if content.get("normalizer") is None else _normalized_whole(content, trained, mask_id)
    for form in (content, whole):
        yield form
        if (form.get("pre_tokenizer") or {}).get("prepend_scheme") == "always":
            yield form | {"pre_tokenizer": form["pre_tokenizer"] | {"prepend_scheme": "first"}}


def _normalized_whole(content: dict[str, Any], trained: "tokenizers.Tokenizer", mask_id: int) -> dict[str, Any]:
    """Match the mask after the text has been normalized whole; it absorbs a space that is spelled `▁`.

    The last step also removes what normalization puts in front of the mask itself, so that it is found everywhere.
    """
    assert trained.normalizer is not None
    mask = trained.normalizer.normalize_str(trained.id_to_token(mask_id)).removeprefix(_BLANK)
    normalizer = content["normalizer"]
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    last = {"type": "Replace", "pattern": {"String": f"{_BLANK}{mask}"}, "content": mask}
    changed = content | {"normalizer": {"type": "Sequence", "normalizers": [*steps, last]}}
    return _with_flags(changed, mask_id, normalized=True)


def _with_flags(content: dict[str, Any], token_id: int, **flags: bool) -> dict[str, Any]:
    added = content.get("added_tokens") or []
    return content | {"added_tokens": [token | flags if token["id"] == token_id else token for token in added]}


def _difference(trained: "tokenizers.Tokenizer", exported: "tokenizers.Tokenizer", mask_id: int) -> str | None:
    """A sentence on the first masked text that the exported tokenizer reads differently from training; None if none."""
    mask = trained.id_to_token(mask_id)
    for sentence in _SENTENCES:
        text = sentence.format(mask)
        found = exported.encode(text, add_special_tokens=False).ids
        candidates = (_masked_ids(trained, sentence, word, mask_id) for word in _WORDS)
        expected = [ids for ids in candidates if ids is not None]
        if expected and found not in expected:
            theirs, ours = (" ".join(str(trained.id_to_token(id_)) for id_ in ids) for ids in (found, expected[0]))
            return f"the tokenizer reads {text!r} as {theirs}, where training had {ours}: fill-mask is the worse for it"
    return None


def _masked_ids(trained: "tokenizers.Tokenizer", sentence: str, word: str, mask_id: int) -> list[int] | None:
    """Ids of a sentence with `word` masked as in training.

    None if the word's tokens, with or without the space before it, are not separate from the rest.
    """
    start = sentence.index("{}")
    end = start + len(word)
    encoding = trained.encode(sentence.format(word), add_special_tokens=False)
    ids: list[int] = []
    is_masked = False
    for token_id, (first, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        if stop <= start - 1 or first >= end or (sentence[start - 1 : start] != " " and stop <= start):
            ids.append(token_id)
        elif first >= start - 1 and start < stop <= end:
            ids += [] if is_masked else [mask_id]
            is_masked = True
        else:
            return None
    return ids if is_masked else None


def _backend(content: dict[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend

    return Backend.from_str(json.dumps(content, ensure_ascii=False))
