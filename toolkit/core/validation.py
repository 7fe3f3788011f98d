"""Turning what pydantic found into one message a person can act on."""

import contextlib
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_LONGEST_VALUE = 100
_TABLE = "a table of keys and values"
# How pydantic names the members of a union, behind the key that has one.
_MEMBERS = ("list[any]", "str", "constrained-str", "bool")
_DEMANDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} at most",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": _TABLE,
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
}
_NUMBERS = {"int_type", "int_parsing", "float_type", "float_parsing"}


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a word that is close to a known one, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def explain(
    error: ValidationError,
    root: type[BaseModel],
    *,
    group: str = "",
    needed: Mapping[str, str] | None = None,
) -> str:
    """Every finding of a validation, one a line: the key, what was found, what would be right.

    Args:
        error: of the validation.
        root: the settings class that was validated.
        group: the key of `root` itself, where it is a group of a larger whole.
        needed: by key, what is said of one that is missing.
    """
    by_key: dict[str, list[Any]] = {}
    for finding in error.errors(include_url=False):
        by_key.setdefault(".".join(map(str, _location(finding))), []).append(finding)
    return "\n".join(
        f"{key} is missing. {needed[key]}"
        if needed and key in needed and findings[0]["type"] == "missing"
        else _explain_key(".".join(part for part in (group, key) if part), findings, root)
        for key, findings in by_key.items()
    )


def demand(*findings: Any) -> str:
    """What a value would have to be, from what pydantic found about it; several findings are of a union's members."""
    first = findings[0]
    if first["type"] == "value_error":
        return str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if any(found["type"] not in _DEMANDS for found in findings):
        return str(first["msg"])[0].lower() + str(first["msg"])[1:]
    value = first["input"]
    if isinstance(value, float) and not math.isfinite(value):
        return "it has to be a finite number"
    wanted = ", or ".join(_DEMANDS[found["type"]].format_map(_limits(found)) for found in findings)
    quotes = ", without quotes" if _is_quoted(value, {found["type"] for found in findings}) else ""
    return f"it has to be {wanted}{quotes}"


def meaning(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    """' Meaning: ...', from the string below the field at a place in a settings class; nothing where there is none."""
    group = _class_at(root, location[:-1])
    field = _fields(group).get(str(location[-1])) if group and location else None
    return f" Meaning: {' '.join(field.description.split())}" if field and field.description else ""


def _explain_key(key: str, findings: list[Any], root: type[BaseModel]) -> str:
    first, location = findings[0], _location(findings[0])
    if first["type"] == "extra_forbidden":
        return _unknown(key, root, location)
    if first["type"] == "missing":
        return f"{key} is missing, and it has to be given.{meaning(root, location)}"
    value = first["input"]
    found = key if isinstance(value, dict) else f"{key} = {_shown(value)}"
    if first["type"] == "value_error":
        # One of our own, which says what to do; what the key is for would not help.
        return f"{found} is refused: {demand(*findings)}." if key else f"{demand(*findings)}."
    group = _class_at(root, location)
    if len(findings) == 1 and _DEMANDS.get(first["type"]) == _TABLE and group:
        return f"{found} is refused: {demand(*findings)}. Its keys: {', '.join(_fields(group))}."
    return f"{found} is refused: {demand(*findings)}.{meaning(root, location)}"


def _unknown(key: str, root: type[BaseModel], location: tuple[Any, ...]) -> str:
    group = _class_at(root, location[:-1])
    word, known = str(location[-1]), tuple(_fields(group)) if group else ()
    if not known:
        return f"unknown key {key!r}. There is no key to set here; leave it out."
    elsewhere = [
        f"{name}.{word}" for name in _fields(root) if (there := _class_at(root, (name,))) and word in _fields(there)
    ]
    hint = nearest(word, known) or (f" Did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else "")
    return f"unknown key {key!r}.{hint} Known keys here: {', '.join(known)}."


def _location(finding: Any) -> tuple[Any, ...]:
    return tuple(part for number, part in enumerate(finding["loc"]) if number == 0 or part not in _MEMBERS)


def _limits(finding: Any) -> dict[str, Any]:
    """The numbers of a bound, as people write them."""
    return {
        key: f"{limit:,g}" if isinstance(limit, float) else f"{limit:,}" if isinstance(limit, int) else limit
        for key, limit in finding.get("ctx", {}).items()
    }


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _is_quoted(value: Any, types: set[str]) -> bool:
    """Whether a text would be right if it stood without quotes, from the types of what pydantic found about it."""
    if not isinstance(value, str):
        return False
    if "bool_type" in types:
        return value in ("true", "false")
    with contextlib.suppress(ValueError):
        return bool(types & _NUMBERS) and math.isfinite(float(value))
    return False


def _fields(group: type[BaseModel]) -> dict[str, Any]:
    """Fields by the names that files use."""
    return {field.alias or name: field for name, field in group.model_fields.items()}


def _class_at(root: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The settings class that holds the keys at `location`, looking through tuples and unions."""
    group: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int):
            continue
        field = _fields(group).get(str(part)) if group else None
        group = _class_in(field.annotation) if field else None
    return group


def _class_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _class_in(part))), None)
