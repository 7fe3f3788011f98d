"""Predictions of the exported encoder for masked words, through stock transformers."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.core.console import quiet_transformers

SENTENCES = (
    ("The film was released in the United", " States", " in 1998."),
    ("She", " was", " born in New York City."),
    ("It is one", " of", " the largest cities in the country."),
    ("The war began", " in", " 1861 and ended four years later."),
    ("They", " were", " married in 1921 and had three children."),
    ("The team won the championship for the first", " time", " in its history."),
    ("The band released their first", " album", " in 1995."),
    ("In 1914 he joined the", " army", " and fought in the war."),
)
"""Text before the masked word, the word with its space, text after it."""

_NUM_PREDICTIONS = 3


@dataclass(frozen=True)
class MaskedWord:
    """A sentence with one word masked, and the predictions of the encoder."""

    before: str
    word: str
    after: str
    predictions: tuple[tuple[str, float], ...]
    """Words and their probabilities, the likeliest first."""


def predict_masked_words(encoder: Path) -> tuple[MaskedWord, ...]:
    """Predictions of a masked-language model for one word of each sentence.

    Args:
        encoder: a folder that AutoModelForMaskedLM loads.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model = AutoModelForMaskedLM.from_pretrained(encoder, local_files_only=True).eval()
    found = []
    for before, word, after in SENTENCES:
        inputs = tokenizer(f"{before}{tokenizer.mask_token}{after}", return_tensors="pt")
        (position,) = (inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
        with torch.no_grad():
            logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits[0, position]
        likeliest = logits.float().softmax(-1).topk(_NUM_PREDICTIONS)
        predictions = tuple(
            (str(tokenizer.decode([token])), probability)
            for token, probability in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        )
        found.append(MaskedWord(before, word, after, predictions))
    return tuple(found)
