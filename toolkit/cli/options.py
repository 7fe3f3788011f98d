"""Options that set the fields of a settings class: its texts and defaults stand there, and are refused there."""

import shlex
from collections.abc import Mapping
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings, invalid_value, meaning

_Settings = TypeVar("_Settings", bound=Settings)


def option_of(settings: type[Settings], key: str, metavar: str | None = None) -> Any:
    """An option whose text and default are those of the setting it sets."""
    field = settings.model_fields[key]
    default = field.default
    shown = "" if field.is_required() or default is None or isinstance(default, bool) else f" [default: {default}]"
    return typer.Option(metavar=metavar, help=f"{field.description}{shown}", show_default=False)


def settings_from(
    settings: type[_Settings], given: Mapping[str, Any], *, options: Mapping[str, str] | None = None
) -> _Settings:
    """The settings that options give; None is an option that was not given.

    Args:
        settings: the class.
        given: values by key.
        options: by key, the option where its name is another one.

    Raises:
        SettingsError: one has a value that its setting refuses; the message names the option.
    """
    try:
        return settings.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        option = (options or {}).get(key, "--" + key.replace("_", "-"))
        value = given[key]
        shown = shlex.quote(",".join(value) if isinstance(value, tuple) else str(value))
        raise SettingsError(f"{invalid_value(option, shown, first)}{meaning(settings, (key,))}") from error
