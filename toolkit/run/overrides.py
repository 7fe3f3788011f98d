"""One `--set a.b=value`, put into settings that are still plain data."""

import tomllib
from typing import Any

from toolkit.core.errors import SettingsError


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one `a.b=value`; the value is TOML, else a string. List items are reached by number: schedule.0.steps."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set {override!r} has no key=value form. Write, for example, --set train.steps=100.")
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
        f"--set {override}: {text!r} is no item of a list of {len(items)}. Give a number from 0 to {len(items) - 1}."
    )
