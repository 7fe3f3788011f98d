"""The tables of settings in the documentation, made from the settings classes.

    python -m tests.docs.settings_tables      writes them into the pages

A page names a table between `<!-- settings: NAME -->` and `<!-- end -->`.
"""

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.docs.pages import PAGES
from toolkit.data.settings import BlendEntry
from toolkit.experiments.grid.declaration import Grid, ModelEntry, TaskEntry
from toolkit.finetuning import FinetuningSettings
from toolkit.finetuning.ir.task import RetrievalSettings
from toolkit.finetuning.qa.task import QuestionAnsweringSettings
from toolkit.finetuning.sc.task import SequenceClassificationSettings
from toolkit.finetuning.settings import MinimalPairsSettings
from toolkit.finetuning.tc.task import TokenClassificationSettings
from toolkit.objectives.diffusion import DiffusionSettings
from toolkit.objectives.mixture import MixEntry
from toolkit.objectives.mlm import MlmSettings
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.ramps import MaskRatioRamp
from toolkit.objectives.schedulers import AlternateSettings
from toolkit.objectives.span import SpanSettings
from toolkit.run.settings import RunSettings

__all__ = ["TABLES", "filled", "keys", "table"]

TABLES: dict[str, type[BaseModel]] = {
    "run": RunSettings,
    "mix": MixEntry,
    "alternate": AlternateSettings,
    "mlm": MlmSettings,
    "ramp": MaskRatioRamp,
    "span": SpanSettings,
    "diffusion": DiffusionSettings,
    "finetuning": FinetuningSettings,
    "grid": Grid,
    "ir": RetrievalSettings,
    "pairs": MinimalPairsSettings,
    "qa": QuestionAnsweringSettings,
    "sc": SequenceClassificationSettings,
    "tc": TokenClassificationSettings,
}

_PLACE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = "| setting | values | default | meaning |\n|---|---|---|---|\n"
_WORDS = {int: "integer", float: "number", bool: "true, false", str: "string", dict: "table"}
_TABLES_IN_LISTS = {BlendEntry: "{path, weight}", MixEntry: "{objective, share, weight}"}
_SIGNS = {Gt: ("gt", ">"), Ge: ("ge", ">="), Lt: ("lt", "<"), Le: ("le", "<=")}
# Decided before the class sees them, so that the class cannot say it.
_DEFAULTS = {"run.dir": "`runs/<name of the run file>`", "grid.dir": "`grids/<name of the grid file>`"}
# Keys that load_run replaces by what they stand for; no class has them.
_PRESET = "| `model.preset` | string | unset | A shape by name; other keys of `[model]` override it. |\n"
_SCHEDULER = (
    '| `scheduler.kind` | string | `"phases"` | What makes the phases from `[[schedule]]`, see [schedulers]'
    "(schedulers.md); its other keys are those of the kind. |\n"
)


def keys(group: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a group and the groups in it, as `--set` names them; N stands for the number of an item."""
    for name, field in group.model_fields.items():
        inner, is_list = _group_in(field.annotation)
        name = field.alias or name
        if inner is None:
            yield f"{prefix}{name}", field
        else:
            yield from keys(inner, f"{prefix}{name}.N." if is_list else f"{prefix}{name}.")


def table(name: str) -> str:
    """One table as Markdown."""
    group = TABLES[name]
    # The table of a class that adds to another one's settings has what it adds.
    shared = next(
        (one for one in (FinetuningSettings, MlmSettings) if group is not one and issubclass(group, one)), None
    )
    rows = [_row(key, field) for key, field in keys(group) if shared is None or key not in shared.model_fields]
    if name == "run":
        for before, row_of_none in (("model.", _PRESET), ("train.", _SCHEDULER)):
            place = next(number for number, row in enumerate(rows) if row.startswith(f"| `{before}"))
            rows.insert(place, row_of_none)
    return _HEAD + "".join(rows)


def filled(text: str) -> str:
    """A page with all its tables as the classes say."""
    return _PLACE.sub(lambda found: found.group(1) + table(found.group(2)) + found.group(3), text)


def _row(key: str, field: FieldInfo) -> str:
    default = _DEFAULTS.get(key) or (
        "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
    )
    meaning = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `{key}` | {_values(field)} | {default} | {meaning} |\n"


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _values(field: FieldInfo) -> str:
    kind, limits = field.annotation, list(field.metadata)
    choices = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) in (Union, types.UnionType):
        words = [_word(part, limits) for part in choices]
    else:
        words = [_word(kind, limits)]
    signs = [
        f"{sign} {getattr(limit, name)}"
        for limit in limits
        for is_, (name, sign) in _SIGNS.items()
        if isinstance(limit, is_)
    ]
    return " or ".join(words) + (f" {', '.join(signs)}" if signs else "")


def _word(kind: Any, limits: list[Any]) -> str:
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        for extra in more:
            limits += getattr(extra, "metadata", [])
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_word(part, limits) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(kind))
    origin = get_origin(kind) or kind
    if origin is tuple:
        inside = get_args(kind)[0]
        inside = get_args(inside)[0] if get_origin(inside) is Annotated else inside
        return f"list of {_TABLES_IN_LISTS.get(inside) or _WORDS.get(inside, 'string') + 's'}"
    return "table" if issubclass(origin, BaseModel) else _WORDS[origin]


def _group_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings class that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    optional = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
    if optional:
        return optional[0], False
    inside = get_args(annotation)[0] if get_origin(annotation) is tuple else None
    if inside in (PhaseSettings, ModelEntry, TaskEntry):
        return inside, True
    return None, False


if __name__ == "__main__":
    for page in PAGES:
        if filled(page.text) != page.text:
            page.path.write_text(filled(page.text), encoding="utf-8")
            print(page.name)
