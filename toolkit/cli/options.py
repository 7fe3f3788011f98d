"""Options that set the fields of a settings class, which has their help texts and defaults and validates them."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings, explain, invalid_value, meaning

_Settings = TypeVar("_Settings", bound=Settings)
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model: a Hugging Face folder or hub id, or a run or checkpoint of this toolkit."
    ),
]
"""Argument of commands that evaluate."""
# Not `run_presets()`: its imports would make `--help` slow.
_PRESETS = ", ".join(sorted(path.stem for path in (Path(__file__).parents[1] / "run" / "presets").glob("*.toml")))
RunSource = Annotated[str, typer.Argument(metavar="RUN.toml|PRESET", help=f"A run file, or a preset: {_PRESETS}.")]
"""Argument of commands that start ranks, and their options:"""
DsConfig = Annotated[
    str | None,
    typer.Option(
        "--ds-config",
        "--ds_config",
        metavar="FILE|NAME|auto",
        help="DeepSpeed JSON, or a shipped one (default: auto, zero1 or zero2).",
    ),
]
NumProcs = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of ranks (default: one per GPU, or 1 on CPU).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=value", help="Change a setting; the value is TOML.")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="a100|h100|h200|b200|mi250x|mi300x", help="With --dry-run: estimate the time on such devices."
    ),
]
"""Option of commands that plan."""
Mfu = Annotated[float, typer.Option(metavar="SHARE", min=0.01, max=1.0, help="Expected fraction of --device's peak.")]
"""Goes with `Device`."""


def option_of(settings: type[Settings], key: str, metavar: str) -> Any:
    """An option whose text and default are those of the setting it sets."""
    return typer.Option(metavar=metavar, help=_help(settings, key), show_default=False)


def help_rows(settings: type[Settings], *, without: Collection[str]) -> list[tuple[str, str]]:
    """Key and text with default of each setting, as a command's help lists what `--set` changes."""
    return [(key, _help(settings, key)) for key in settings.model_fields if key not in without]


def _help(settings: type[Settings], key: str) -> str:
    field = settings.model_fields[key]
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    # Flags need no default.
    shown = "" if field.is_required() or default is None or isinstance(default, bool) else f" [default: {default}]"
    return f"{' '.join((field.description or '').split())}{shown}"


def settings_from(
    settings: type[_Settings],
    given: Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> _Settings:
    """Settings from options; None is an option that was not given.

    `overrides` are the `key=value` of `--set`; `options` has an option's name by key, where the two differ.
    """
    values = {key: value for key, value in given.items() if value is not None}
    changed: dict[str, Any] = {}
    for override in overrides:
        from toolkit.run.toml_files import apply_override  # all of a run's settings, a third of a second

        apply_override(changed, override)
    names = {key: (options or {}).get(key, "--" + key.replace("_", "-")) for key in values}
    if both := sorted(values.keys() & changed.keys()):
        raise SettingsError(f"{names[both[0]]} and --set {both[0]} are both given. Leave one of the two out.")
    try:
        return settings.model_validate(values | changed)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if key not in values:
            raise SettingsError(explain(error, settings)) from error
        option, value = names[key], given[key]
        if first["type"] == "extra_forbidden":
            raise SettingsError(f"{option} is not an option of this task. Leave it out.") from error
        shown = shlex.quote(",".join(value) if isinstance(value, tuple | list) else str(value))
        raise SettingsError(f"{invalid_value(option, shown, first)}{meaning(settings, (key,))}") from error
