"""Training of a byte-level BPE, for quickstarts, tests and small languages."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenization.errors import TokenizationError

_END, _PAD, _MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
_SMALLEST = 256 + 3


def train_bpe(texts: Iterable[str], *, vocabulary_size: int, folder: Path) -> Path:
    """Train a byte-level BPE on `texts` and save it as a Hugging Face folder.

    Equal texts in equal order give equal files. Ids 0, 1, 2 are the end of a document (`eos_token`), padding and
    the mask; then come the 256 bytes; then merges, so that any text can be encoded and decoded without loss.

    Args:
        vocabulary_size: number of ids, including specials and mask; at least 259. Fewer if there is little text.
        folder: created if missing; `tokenizer.json` and `tokenizer_config.json` in it are replaced.

    Raises:
        TokenizationError: the vocabulary is too small for all bytes.
        OSError: the files cannot be written; none is left incomplete.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocabulary_size < _SMALLEST:
        raise TokenizationError(
            f"a vocabulary of {vocabulary_size} is too small: 256 bytes and 3 special tokens need {_SMALLEST}. "
            "Choose that or more."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[_END, _PAD, _MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _END,
        "pad_token": _PAD,
        "mask_token": _MASK,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "tokenizer_config.json": json.dumps(names, indent=2) + "\n",
        "tokenizer.json": tokenizer.to_str(pretty=True),
    }
    for name, content in files.items():
        partial = folder / f".{name}.partial"
        try:
            partial.write_text(content, encoding="utf-8")
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)
    return folder
