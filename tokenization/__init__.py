"""Tokenizers as the toolkit needs them: ids in arrays, named special tokens, a fingerprint. Usable alone."""

from tokenization.errors import TokenizationError, UnsupportedTokenizerError
from tokenization.loading import load
from tokenization.mask import MaskOrigin, MaskToken
from tokenization.tokenizer import EncodingRules, Tokenizer
from tokenization.train import train_bpe

__all__ = [
    "EncodingRules",
    "MaskOrigin",
    "MaskToken",
    "TokenizationError",
    "Tokenizer",
    "UnsupportedTokenizerError",
    "load",
    "train_bpe",
]
