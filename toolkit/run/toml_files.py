"""TOML files of settings: read, and changed by `--set a.b=value`."""

import re
import tomllib
from pathlib import Path
from typing import Any

from toolkit.core.errors import SettingsError

# How the TOML reader writes the name of a table: ('a', 'b').
_TABLE, _NAME = re.compile(r"\('[^)]*'[^)]*\)"), re.compile(r"'([^']*)'")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        # Some editors begin a file with a mark of its encoding, which TOML does not know.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not valid UTF-8 at byte {error.start:,}. Save it as UTF-8.") from None
    except OSError as error:
        raise SettingsError(f"could not read {path}: {error.strerror}. Give a run file that can be read.") from None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = _TABLE.sub(lambda found: f"[{'.'.join(re.findall(_NAME, found[0]))}]", toml_problem(error, text))
        raise SettingsError(
            f"{path} is not valid TOML: {reason}.\n"
            'Correct it there: tables are written in [brackets], strings in "quotes".'
        ) from None


def toml_problem(error: Exception, text: str) -> str:
    """Message of the TOML reader, always with line and column."""
    *before, last = text.rstrip().split("\n")
    place = f"at line {len(before) + 1:,}, column {len(last) + 1:,}, the end of the file"
    return str(error).replace("at end of document", place)


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one `a.b=value`; the value is TOML, else a string. List items are reached by number: schedule.0.steps."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set {override!r} is not of the form key=value. Write, for example: train.steps=100.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.split(".")
    place: Any = raw
    for depth, parent in enumerate(parents):
        place = place[_item(place, parent, override)] if isinstance(place, list) else place.setdefault(parent, {})
        if not isinstance(place, dict | list):
            raise SettingsError(
                f"--set {override}: {'.'.join(parents[: depth + 1])} is a value, not a group of keys. "
                f"Set it itself, or correct the key."
            )
    if isinstance(place, list):
        place[_item(place, last, override)] = value
    else:
        place[last] = value


def _item(items: list[Any], text: str, override: str) -> int:
    if text.isdecimal() and int(text) < len(items):
        return int(text)
    raise SettingsError(
        f"--set {override}: {text!r} is not an item of a list of {len(items)}. "
        f"Give a number from 0 to {len(items) - 1}."
    )
