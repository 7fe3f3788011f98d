"""Turning what pydantic found into one message a person can act on."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

__all__ = ["explain", "nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a word that is close to a known one, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def explain(error: ValidationError, root: type[BaseModel], *, prefix: str = "") -> str:
    """Every finding of a validation, one a line: the key, what was found, what would be right."""
    lines = [_explain_one(finding, root, prefix) for finding in error.errors(include_url=False)]
    return "\n".join(lines)


def _explain_one(finding: Any, root: type[BaseModel], prefix: str) -> str:
    location = tuple(part for part in finding["loc"] if part not in ("list[any]", "str"))
    key = prefix + ".".join(str(part) for part in location)
    if finding["type"] == "extra_forbidden":
        group = _class_at(root, location[:-1])
        known = tuple(group.model_fields) if group else ()
        listed = f" Known keys here: {', '.join(known)}." if known else ""
        return f"unknown key {key!r}.{nearest(str(location[-1]), known)}{listed}"
    if finding["type"] == "missing":
        return f"{key} is missing."
    message = finding["msg"].removeprefix("Value error, ").rstrip(".")
    given = f" = {finding['input']!r}" if not isinstance(finding["input"], dict) else ""
    return f"{key}{given} is refused: {message[0].lower()}{message[1:]}.{_meaning(root, location)}"


def _meaning(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    """What the setting is for, from the string below its field."""
    group = _class_at(root, location[:-1])
    field = group.model_fields.get(str(location[-1])) if group and location else None
    return f" Meaning: {field.description}" if field and field.description else ""


def _class_at(root: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The settings class that holds the keys at `location`, looking through tuples and unions."""
    group: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int):
            continue
        field = group.model_fields.get(str(part)) if group else None
        group = _class_in(field.annotation) if field else None
    return group


def _class_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _class_in(part))), None)
