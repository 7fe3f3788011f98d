"""TOML settings files: finding, reading, and changing by `--set a.b=value`."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.core.settings import nearest
from toolkit.core.text import quoted

_COMMANDS = {"run": "train", "study": "study", "grid": "grid"}
_OF_A_RUN = {"run", "model", "data", "schedule", "train", "lr"}
# How the TOML reader writes the name of a table: ('a', 'b').
_TABLE, _NAME = re.compile(r"\('[^)]*'[^)]*\)"), re.compile(r"'([^']*)'")


def presets_in(folder: Path) -> tuple[str, ...]:
    """Names of the presets in a folder of the package."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def find_toml(source: str, presets: Path, *, what: str) -> Path:
    """The path of a file, or of a preset in the folder; `what` is what messages call the file."""
    path, known = Path(source), presets_in(presets)
    if path.is_file():
        return path
    if source in known:
        return presets / f"{source}.toml"
    if source and path.is_dir():
        raise SettingsError(f"{source} is a directory, not a {what}. Give the .toml file in it.")
    raise SettingsError(
        f"{what} {source!r} does not exist, and no preset has that name.{nearest(source, known)}\n"
        f"Give a .toml file or a preset. Available presets: {', '.join(known)}."
    )


def _kind_of(raw: Mapping[str, Any]) -> str | None:
    """The kind of a TOML file by its content: run, study or grid; None if it could be any."""
    if raw.keys() & {"study", "models"}:
        return "study"
    if isinstance(raw.get("model"), list) or raw.keys() & {"grid", "task"}:
        return "grid"
    return "run" if raw.keys() & _OF_A_RUN else None


def read_toml(path: Path, *, expected: str | None = None) -> dict[str, Any]:
    """The content of a TOML file; a SettingsError for a run, study or grid file if another of these is expected."""
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not valid UTF-8 at byte {error.start:,}. Save it as UTF-8.") from None
    except OSError as error:
        raise SettingsError(f"could not read {path}: {error.strerror}. Give a file that can be read.") from None
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        *before, last = text.rstrip().split("\n")
        end = f"at line {len(before) + 1:,}, column {len(last) + 1:,}, the end of the file"
        reason = str(error).replace("at end of document", end)
        reason = _TABLE.sub(lambda found: f"[{'.'.join(re.findall(_NAME, found[0]))}]", reason)
        raise SettingsError(
            f"{path} is not valid TOML: {reason}.\n"
            'Correct it there: tables are written in [brackets], strings in "quotes".'
        ) from None
    if expected and (kind := _kind_of(raw)) not in (None, expected):
        raise SettingsError(
            f"{path} is a {kind} file, not a {expected} file. Use it with: toolkit {_COMMANDS[kind]} {quoted(path)}"
        )
    return raw


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
