"""Tokenizers as the toolkit needs them: ids in arrays, named special tokens, a fingerprint. Usable alone."""

from tokenization.difference import Difference
from tokenization.errors import EncodersDiffer, FastUnavailable, TokenizationError, UnsupportedTokenizerError
from tokenization.fast.encoder import FastEncoder
from tokenization.loading import load
from tokenization.mask import MaskOrigin, MaskToken
from tokenization.reference import EncodingRules, TokenizerKind
from tokenization.tokenizer import Tokenizer
from tokenization.train import train_bpe

__all__ = [
    "Difference",
    "EncodersDiffer",
    "EncodingRules",
    "FastEncoder",
    "FastUnavailable",
    "MaskOrigin",
    "MaskToken",
    "TokenizationError",
    "Tokenizer",
    "TokenizerKind",
    "UnsupportedTokenizerError",
    "load",
    "train_bpe",
]
