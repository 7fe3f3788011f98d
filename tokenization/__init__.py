"""Tokenizers as the toolkit needs them: ids in arrays, named special tokens, a fingerprint. Usable alone."""

from tokenization.errors import TokenizationError, UnsupportedTokenizerError
from tokenization.train import train_bpe

__all__ = ["TokenizationError", "UnsupportedTokenizerError", "train_bpe"]
