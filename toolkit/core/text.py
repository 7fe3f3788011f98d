"""Formatting of parts of messages."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

# Characters that move the cursor, set colors or change the text direction, and surrogates, which cannot be encoded.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
PASSWORD = re.compile(r"(?<=:/)(/?)[^/\s]*:[^/\s]*@")
"""User and password in a URL, or in a URL that was taken for a path (with one slash)."""
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}


def counted(number: int, word: str, words: str | None = None) -> str:
    """'1 rank', '2 ranks'; `words` is the plural if it is not the word plus an s."""
    return f"{number:,} {word if number == 1 else words or f'{word}s'}"


def duration(seconds: float) -> str:
    """'0:16:00': hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def rounded(number: float) -> str:
    """A number with three significant digits; a large one as an integer, since it would be written as 2.61e+03."""
    return f"{number:,.0f}" if number >= 100 else f"{number:,.3g}"


def first_few(names: Sequence[str], most: int = 3) -> str:
    """The first three (or `most`) names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def root_cause(error: BaseException) -> str:
    """Type and first line of the error at the root of this one."""
    while (cause := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = cause
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def json_kind(value: Any) -> str:
    """The JSON type of a value."""
    return _KINDS.get(type(value), "null")


def printable(text: str) -> str:
    """Text on one line, without characters that move the cursor or change colors."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def terminal_safe(text: str) -> str:
    """Text with terminal control characters escaped and passwords in URLs hidden. Line ends stay."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], PASSWORD.sub(r"\1...@", text))


def ending(made: str, *commands: str) -> str:
    """Last lines of a command's output: what it wrote and where, then the next commands, one per line."""
    return "\n".join((f"{made}. Next:", *(f"  {command}" for command in commands)))


def quoted(path: object) -> str:
    """A path quoted as one word of a command that is printed for copying."""
    return shlex.quote(str(path))


def set_option(key: str, path: object) -> str:
    """Option `--set KEY=PATH` of a command that is printed for copying.

    `--set` reads TOML, where a path such as `2024` would be another value: it gets a `./`.
    """
    # Only for the last lines of a command.
    import tomllib

    try:
        tomllib.loads(f"value = {path}")
    except tomllib.TOMLDecodeError:
        return f"--set {quoted(f'{key}={path}')}"
    return f"--set {quoted(f'{key}=./{path}')}"


def home_hint(path: object) -> str:
    """A hint if a path begins with ~, which only a shell expands; else empty."""
    return " `~` is not expanded here: give the full path." if str(path).startswith("~") else ""
