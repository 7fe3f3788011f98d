"""What can go wrong with a tokenizer.

TokenizationError              a file, a name or an id that does not fit; the text says what to do
└── UnsupportedTokenizerError  a kind of tokenizer that is known, and not read yet
"""

__all__ = ["TokenizationError", "UnsupportedTokenizerError"]


class TokenizationError(Exception):
    """A tokenizer that is missing, damaged or does not fit; its text is meant for the user."""


class UnsupportedTokenizerError(TokenizationError):
    """A kind of tokenizer that this package knows of and cannot read yet."""
