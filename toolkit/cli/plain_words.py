"""What the command-line library says of a value, in the words of all our messages."""

import re

_WORDS = (
    (re.compile(r"^Value error, "), ""),
    (re.compile(r"^Input should be a valid integer.*"), "it has to be a whole number."),
    (re.compile(r"^Input should be a valid number.*"), "it has to be a number."),
    (re.compile(r"^Input should be greater than or equal to (\S+)$"), r"it has to be at least \1."),
    (re.compile(r"^embedded null byte$"), "a path cannot hold the character NUL."),
)


def plain_words(message: str) -> str:
    """The message, reworded where it is known; the library writes option and usage around it."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message
