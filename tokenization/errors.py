"""Exceptions of the package.

TokenizationError              an invalid file, name or id; the message says what to do
├── UnsupportedTokenizerError  a known kind of tokenizer that is not supported
├── FastUnavailable            the fast backend is missing or does not support this tokenizer
├── CannotEncode               the vocabulary cannot represent a text
└── BackendsDiffer             the ids of the fast backend differ from the reference
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

_SHOWN_CHARACTERS = 60


class TokenizationError(Exception):
    """A tokenizer that is missing, damaged or invalid; the message is meant for the user."""


class UnsupportedTokenizerError(TokenizationError):
    """A known kind of tokenizer that is not supported."""


class FastUnavailable(TokenizationError):
    """The fast backend cannot be used with this tokenizer; `reason` says why, as a clause for a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The fast backend cannot be used: {reason}.")
        self.reason = reason


class CannotEncode(TokenizationError):
    """The vocabulary cannot represent a text: no unknown token, and no token for some character."""


@dataclass(frozen=True)
class Difference:
    """Two unequal encodings of one text.

    Attributes:
        token: zero-based index of the first token that differs.
        expected: ids of the reference from there on, at most 8.
        found: ids of the other backend from there on, at most 8.
        note: further details, for example how the backend crashed.
    """

    text: str
    token: int
    expected: tuple[int, ...]
    found: tuple[int, ...]
    note: str = ""

    def __str__(self) -> str:
        shown = repr(self.text[:_SHOWN_CHARACTERS]) + ("..." if len(self.text) > _SHOWN_CHARACTERS else "")
        note = f" ({self.note})" if self.note else ""
        return (
            f"token {self.token:,} of a text of {len(self.text):,} characters that starts {shown}: "
            f"expected {list(self.expected)}, found {list(self.found)}{note}"
        )


class BackendsDiffer(TokenizationError):
    """The fast backend and the reference gave different ids for one text."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(f"The fast backend differs from the reference: {difference}.")
        self.difference = difference


@contextmanager
def native_errors(
    what: str,
    *,
    remedy: str = "Download the tokenizer again, or give another one.",
    error_class: type[TokenizationError] = TokenizationError,
) -> Iterator[None]:
    """Turn errors of native libraries into a TokenizationError that begins with `what`.

    They raise bare Exception, TypeError, RuntimeError and others; a Rust panic derives directly from BaseException.
    """
    try:
        yield
    except TokenizationError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise error_class(f"{what}: {lines[0][:300].rstrip('.')}. {remedy}") from error


encoding_errors = partial(
    native_errors,
    "the tokenizer cannot encode this text",
    remedy="Give a tokenizer with an unknown token, or with a token for each byte.",
    error_class=CannotEncode,
)
"""Turn a library's errors while encoding a text into `CannotEncode`."""
