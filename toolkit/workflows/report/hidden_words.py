"""Asking the exported encoder for hidden words, through stock transformers as its users would."""

from pathlib import Path

from toolkit.core.console import quiet_transformers
from toolkit.workflows.report.facts import HiddenWord

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
"""Before the hidden word, the word with its space, after it."""

_NUM_GUESSES = 3


def guess_hidden_words(encoder: Path) -> tuple[HiddenWord, ...]:
    """What a masked-language model puts in place of one word of each sentence.

    Args:
        encoder: a folder that AutoModelForMaskedLM loads.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model = AutoModelForMaskedLM.from_pretrained(encoder, local_files_only=True).eval()
    found = []
    for before, hidden, after in SENTENCES:
        inputs = tokenizer(f"{before}{tokenizer.mask_token}{after}", return_tensors="pt")
        (position,) = (inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
        with torch.no_grad():
            logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits[0, position]
        likeliest = logits.float().softmax(-1).topk(_NUM_GUESSES)
        guesses = tuple(
            (str(tokenizer.decode([token])), probability)
            for token, probability in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        )
        found.append(HiddenWord(before, hidden, after, guesses))
    return tuple(found)
