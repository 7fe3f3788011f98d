"""From a run file or a preset and --set options to checked settings."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.validation import explain, nearest
from toolkit.model.presets import MODEL_PRESETS
from toolkit.run.initial import bring_model
from toolkit.run.overrides import apply_override
from toolkit.run.rules import check_run
from toolkit.run.settings import RunSettings

_PRESETS = Path(__file__).parent / "presets"
# How the TOML reader writes the name of a table: ('a', 'b').
_TABLE, _NAME = re.compile(r"\('[^)]*'[^)]*\)"), re.compile(r"'([^']*)'")
_REQUIRED = {
    "data": "A run needs data.train: the folder of a corpus, as `toolkit preprocess` writes it.",
    "schedule": 'A run needs [[schedule]]: its phases, for example objective = "clm", steps = 1000.',
    "model": "A run needs model.preset, the keys of [model], or init.from: a model to start from.",
    "init.from": "[init] needs init.from: a model, a checkpoint or a run to start from; without one, leave [init] out.",
}


def run_presets() -> tuple[str, ...]:
    """Names of the run files that travel with the package."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def load_run(source: str, overrides: Sequence[str] = ()) -> RunSettings:
    """Settings from a run file or the name of a shipped preset, with `a.b=value` overrides on top.

    Raises:
        SettingsError: naming each key that is wrong, what was found and what would be right.
    """
    path = _find(source)
    raw = _read(path)
    for override in overrides:
        apply_override(raw, override)
    _expand_model_preset(raw)
    _name_run_folder(raw, path.stem)
    bring_model(raw)
    try:
        settings = RunSettings.model_validate(raw)
    except ValidationError as error:
        found = explain(error, RunSettings, needed=_REQUIRED).splitlines()
        # One finding goes on behind the name of the file, several stand below it.
        between = " " if len(found) == 1 else "\n  "
        raise SettingsError(between.join([f"{path}:", *found])) from None
    check_run(settings)
    return settings


def to_toml(settings: RunSettings) -> str:
    """The settings as a run file; keys without a value are left out, since TOML has none."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True, by_alias=True))


def _find(source: str) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    if source in run_presets():
        return _PRESETS / f"{source}.toml"
    if source and path.is_dir():
        raise SettingsError(f"{source} is a folder, and a run is described by a file. Give the .toml file in it.")
    hint = nearest(source, run_presets())
    raise SettingsError(
        f"run file {source!r} does not exist, and no preset has that name.{hint}\n"
        f"Give a .toml file or one of: {', '.join(run_presets())}."
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        # Some editors begin a file with a mark of its encoding, which TOML does not know.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: see its byte {error.start:,}. Save it as UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = _TABLE.sub(lambda found: f"[{'.'.join(re.findall(_NAME, found[0]))}]", str(error))
        raise SettingsError(
            f'{path} is not valid TOML: {reason}.\nCorrect it there: tables stand in [brackets], texts in "quotes".'
        ) from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. Give a run file that can.") from None


def _expand_model_preset(raw: dict[str, Any]) -> None:
    """Replace model.preset by its keys; other keys of [model] win over them."""
    model = raw.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return
    name = model.pop("preset")
    if not isinstance(name, str) or name not in MODEL_PRESETS:
        hint = nearest(str(name), MODEL_PRESETS)
        raise SettingsError(f"model.preset={name!r} is unknown.{hint}\nThere are: {', '.join(sorted(MODEL_PRESETS))}.")
    preset = MODEL_PRESETS[name].model_dump(exclude_unset=True)
    raw["model"] = {**preset, **model}


def _name_run_folder(raw: dict[str, Any], name: str) -> None:
    run = raw.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("dir", f"runs/{name}")
