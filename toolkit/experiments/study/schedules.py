"""Schedules as text: `clm 3k + mlm 9k`, an objective and a length for each phase."""

import re
from typing import Any

from toolkit.core.errors import SettingsError

_PHASE = re.compile(r"(\S+)\s+(\d[\d_,]*(?:\.\d+)?)\s*([kKmMbB]?)\s*(%|tokens|steps)?")
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def parse_schedule(text: str) -> list[dict[str, Any]]:
    """`[[schedule]]` of a text: lengths are steps, `12k`, `5B tokens`, or `25%` of `train.steps`."""
    return [_phase(part.strip(), text) for part in text.split("+")]


def _phase(part: str, text: str) -> dict[str, Any]:
    found = _PHASE.fullmatch(part)
    if found is None:
        raise SettingsError(
            f'schedule "{text}": {part!r} is not an objective and a length. Write for example "clm 3k + mlm 9k"; '
            "lengths are steps (750, 12k), tokens (5B tokens) or shares of train.steps (25%)."
        )
    objective, digits, multiple, unit = found.groups()
    number = float(re.sub("[_,]", "", digits)) * _TIMES[multiple.lower()]
    if unit == "%":
        return {"objective": objective, "fraction": number / 100}
    if number != int(number):
        raise SettingsError(f'schedule "{text}": {part!r} has {number:g} {unit or "steps"}. Give a whole number.')
    return {"objective": objective, "tokens" if unit == "tokens" else "steps": int(number)}
