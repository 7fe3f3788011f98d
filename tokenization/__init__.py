"""Tokenizers with ids in arrays, named special tokens and a fingerprint; usable without the toolkit."""

from tokenization.errors import (
    BackendsDiffer,
    CannotEncode,
    Difference,
    FastUnavailable,
    TokenizationError,
    UnsupportedTokenizerError,
)
from tokenization.fast.backend import FastBackend
from tokenization.frame import Frame
from tokenization.loading import load
from tokenization.mask import MaskOrigin, MaskToken
from tokenization.reference import EncodingRules, TokenizerKind
from tokenization.tokenizer import Tokenizer
from tokenization.train import train_bpe

__all__ = [
    "BackendsDiffer",
    "CannotEncode",
    "Difference",
    "EncodingRules",
    "FastBackend",
    "FastUnavailable",
    "Frame",
    "MaskOrigin",
    "MaskToken",
    "TokenizationError",
    "Tokenizer",
    "TokenizerKind",
    "UnsupportedTokenizerError",
    "load",
    "train_bpe",
]
