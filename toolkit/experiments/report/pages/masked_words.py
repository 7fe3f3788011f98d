"""Report section of sentences with one masked word each, and an encoder's predictions for it."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

_NUM_PREDICTIONS = 3


@dataclass(frozen=True)
class MaskedWord:
    """A sentence with one word masked, and what an encoder predicts."""

    before: str
    word: str
    """The masked word, with its leading space."""
    after: str
    predictions: tuple[tuple[str, float], ...]
    """Words and their probabilities, most likely first."""

    def html(self) -> str:
        """HTML of a list item."""
        space = " " if self.word.startswith(" ") else ""
        guesses = "".join(
            f'<div class="guess{" right-one" if text == self.word else ""}"><span>{escape(text.strip() or text)}</span>'
            f'<div class="bar"><i style="width:{share:.1%}"></i></div>'
            f'<div class="share">{f"{share:.0%}" if share >= 0.005 else "&lt;1%"}</div></div>'
            for text, share in self.predictions
        )
        sentence = f"{escape(self.before)}{space}<mark>{escape(self.word.strip())}</mark>{escape(self.after)}"
        return f"<li><div>{sentence}</div><div>{guesses}</div></li>"


def masked_words_section(words: list[MaskedWord]) -> str:
    """The section's HTML."""
    num_found = sum(word.predictions[0][0] == word.word for word in words)
    return f"""
<p>Simple sentences that are not in the training text, each with one word masked. The encoder's top prediction is
the masked word in {num_found} of {len(words)}.</p>
<ul class="words">{"".join(word.html() for word in words)}</ul>"""


def predict_masked_words(encoder: Path, sentences: tuple[tuple[str, str, str], ...]) -> list[MaskedWord]:
    """Predictions of a folder's masked language model for each (text before, word with its space, text after)."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from toolkit.core.console import quiet_transformers

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model = AutoModelForMaskedLM.from_pretrained(encoder, local_files_only=True).eval()
    found = []
    for before, word, after in sentences:
        inputs = tokenizer(f"{before}{tokenizer.mask_token}{after}", return_tensors="pt")
        (position,) = (inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
        with torch.no_grad():
            logits_V = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).logits[0, position]
        likeliest = logits_V.float().softmax(-1).topk(_NUM_PREDICTIONS)
        tokens = [str(tokenizer.decode([token])) for token in likeliest.indices.tolist()]
        found.append(MaskedWord(before, word, after, tuple(zip(tokens, likeliest.values.tolist(), strict=True))))
    return found
