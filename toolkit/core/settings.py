"""Base of every settings class, and messages about invalid settings, built from pydantic's findings."""

import contextlib
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError

from toolkit.core.errors import SettingsError

NUMBER, TABLE = "a number", "a table"
"""Tags of union members; see `table_or`."""

_Model = TypeVar("_Model", bound=BaseModel)
_LONGEST_VALUE = 100
# Names of union members, which pydantic puts after the key of the union.
_MEMBERS = ("list[any]", "str", "constrained-str", "bool", NUMBER, TABLE)
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a non-empty string",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "a value above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a value below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of {min_length} or more items",
    "too_long": "a list of at most {max_length} items",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": TABLE,
    "model_type": TABLE,
    "model_attributes_type": TABLE,
}
_NUMBERS = {"int_type", "int_parsing", "float_type", "float_parsing"}


class Record(BaseModel):
    """Plain data from a file. Types are strict: `"4"` and `true` are not numbers; validation never changes a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Settings(Record):
    """A group of settings; the string below each one is its meaning, which help and messages show.

    Fields that are tuples here but lists in files are marked so.
    """

    # Not in `Record`: pydantic parses the source of every class that has it.
    model_config = ConfigDict(use_attribute_docstrings=True)


def table_or(other: str) -> Discriminator:
    """Discriminator of a union of a table and another type: messages are about the member that a value resembles."""
    return Discriminator(lambda value: TABLE if isinstance(value, dict | BaseModel) else other)


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' if the word is close to a known one, else empty."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def validated(
    root: type[_Model],
    given: object,
    *,
    origin: str = "",
    group: str = "",
    needed: Mapping[str, str] | None = None,
) -> _Model:
    """Validate plain data; raise `SettingsError` with every finding, prefixed with `origin`, the name of the whole.

    For `group` and `needed` see `explain`.
    """
    try:
        return root.model_validate(given)
    except ValidationError as error:
        found = explain(error, root, group=group, needed=needed)
    if origin:
        found = f"{origin}:\n  {found}" if "\n" in found else f"{origin}: {found}"
    raise SettingsError(found)


def explain(
    error: ValidationError,
    root: type[BaseModel],
    *,
    group: str = "",
    needed: Mapping[str, str] | None = None,
) -> str:
    """Every finding of a validation, one per line: the key, what was expected and what was found.

    `group` is the key of `root` if that is a group within a larger whole; `needed` has messages for missing keys.
    """
    by_key: dict[str, list[Any]] = {}
    all_found = error.errors(include_url=False)
    for finding in all_found:
        # pydantic counts valid items only, so a list with an invalid item may seem too short.
        place = finding["loc"]
        if finding["type"] == "too_short" and any(one["loc"][: len(place)] == place != one["loc"] for one in all_found):
            continue
        by_key.setdefault(".".join(map(str, _location(finding))), []).append(finding)
    return "\n".join(
        f"{key} is missing. {needed[key]}"
        if needed and key in needed and findings[0]["type"] == "missing"
        else _explain_key(".".join(part for part in (group, key) if part), findings, root)
        for key, findings in by_key.items()
    )


def invalid_value(key: str, value: str, *findings: Any) -> str:
    """'invalid value for KEY: expected an integer, got VALUE.'

    Several findings about one value come from the members of a union.
    """
    first = findings[0]
    if first["type"] != "value_error":
        return f"invalid value for {key}: {expectation(*findings)}, got {value}."
    # From one of our own validators; it says what to do.
    message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    found = "" if isinstance(first["input"], dict) else f" {value}"
    return f"invalid value{found} for {key}: {message}." if key else f"{message}."


def expectation(*findings: Any) -> str:
    """'expected an integer', from what pydantic found about one value."""
    first, types = findings[0], {finding["type"] for finding in findings}
    if not types <= set(_EXPECTED):
        message = str(first["msg"]).removeprefix("Value error, ")
        return message[0].lower() + message[1:]
    if isinstance(first["input"], float) and not math.isfinite(first["input"]):
        return "expected a finite number"
    expected = ", or ".join(_EXPECTED[finding["type"]].format_map(_limits(finding)) for finding in findings)
    return f"expected {expected}" + (" without quotes" if _is_quoted(first["input"], types) else "")


def meaning(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    """' Meaning: ...', from the string below the field at `location` in a settings class; empty if it has none."""
    group = _class_at(root, location[:-1])
    field = _fields(group).get(str(location[-1])) if group and location else None
    return f" Meaning: {' '.join(field.description.split())}" if field and field.description else ""


def _explain_key(key: str, findings: list[Any], root: type[BaseModel]) -> str:
    first, location = findings[0], _location(findings[0])
    if first["type"] == "extra_forbidden":
        return _unknown(key, root, location)
    if first["type"] == "missing":
        return f"{key} is missing; it is required.{meaning(root, location)}"
    message = invalid_value(key, _shown(first["input"]), *findings)
    if first["type"] == "value_error":
        return message
    group = _class_at(root, location)
    if len(findings) == 1 and _EXPECTED.get(first["type"]) == TABLE and group:
        return f"{message} Its keys: {', '.join(_fields(group))}."
    return f"{message}{meaning(root, location)}"


def _unknown(key: str, root: type[BaseModel], location: tuple[Any, ...]) -> str:
    group = _class_at(root, location[:-1])
    word, known = str(location[-1]), tuple(_fields(group)) if group else ()
    if not known:
        return f"unknown key {key!r}. No keys are allowed here; remove it."
    elsewhere = [word] if word in _fields(root) else []
    elsewhere += [
        f"{name}.{word}" for name in _fields(root) if (there := _class_at(root, (name,))) and word in _fields(there)
    ]
    # The same word in another group is a better guess than a similar word in this one.
    hint = f" Did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else nearest(word, known)
    return f"unknown key {key!r}.{hint} Known keys here: {', '.join(known)}."


def _location(finding: Any) -> tuple[Any, ...]:
    return tuple(part for number, part in enumerate(finding["loc"]) if number == 0 or part not in _MEMBERS)


def _limits(finding: Any) -> dict[str, Any]:
    """The limits in a finding, with numbers formatted for people."""
    return {
        key: f"{limit:,g}" if isinstance(limit, float) else f"{limit:,}" if isinstance(limit, int) else limit
        for key, limit in finding.get("ctx", {}).items()
    }


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _is_quoted(value: Any, types: set[str]) -> bool:
    """True if a string would be valid without its quotes, judging by the types of pydantic's findings about it."""
    if not isinstance(value, str):
        return False
    if "bool_type" in types:
        return value in ("true", "false")
    with contextlib.suppress(ValueError):
        return bool(types & _NUMBERS) and math.isfinite(float(value))
    return False


def _fields(group: type[BaseModel]) -> dict[str, Any]:
    """Fields by their names in files."""
    return {field.alias or name: field for name, field in group.model_fields.items()}


def _class_at(root: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The settings class of the keys at `location`, looking through tuples and unions."""
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
