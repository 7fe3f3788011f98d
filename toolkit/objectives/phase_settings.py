"""Settings of a phase of the schedule."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from toolkit.core.settings import Settings
from toolkit.objectives.mixture import MixEntry, alone, mixture_complaint

_LENGTHS = ("steps", "tokens", "epochs", "fraction")


class PhaseSettings(Settings):
    """A phase of the schedule: an objective or a mix, exactly one length, and what changes from there on."""

    objective: str | None = Field(None, min_length=1)
    """A key of `objectives`, or a kind such as `mlm`; required without `mix`."""
    mix: tuple[MixEntry, ...] | None = Field(None, strict=False)
    """Instead of `objective`: objectives that share each step's rows."""
    steps: int | None = Field(default=None, gt=0)
    """Length in updates."""
    tokens: int | None = Field(default=None, gt=0)
    """Length in positions, rounded up to whole steps."""
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Length in passes over its rows, rounded up to whole steps."""
    fraction: float | None = Field(default=None, gt=0, le=1)
    """Length as a share of `train.steps`; if one phase has it, all have."""
    global_batch_rows: int | None = Field(default=None, gt=0)
    """Rows of a step. Unset: `train.global_batch_rows`."""
    batch_warmup_rows: int | None = Field(default=None, gt=0)
    """Batch-size warm-up: rows of the first steps, and the increment. Unset: no warm-up."""
    batch_warmup_tokens: int | None = Field(default=None, gt=0)
    """Positions until the full batch size, divided evenly among the smaller sizes."""
    data: dict[str, Any] | None = None
    """Keys of `[data]` that differ, such as `train` or `sequence_length`."""
    model: dict[str, Any] | None = None
    """Keys of `[model]` that differ: `rope_theta`, `local_rope_theta`, `rope_scaling`, `max_position_embeddings`."""
    lr: Literal["keep", "rewarm"] = "keep"
    """`rewarm`: restart the learning rate schedule here, until the next such phase."""
    lr_peak: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak after a `rewarm`. Unset: `lr.peak`."""
    lr_warmup_steps: int | None = Field(default=None, ge=0)
    """Warm-up steps of a `rewarm`. Unset: `lr.warmup_steps`."""
    lr_decay_steps: int | None = Field(default=None, ge=0)
    """Decay steps after a `rewarm`, for kind `wsd`. Unset: `lr.decay_steps`."""
    planned_steps: int | None = Field(default=None, gt=0)
    """Written by `toolkit branch` in a phase left early: its planned length, over which shares, ramps and batch-size
    warm-up run."""
    lr_planned_to: int | None = Field(default=None, gt=0)
    """Written by `toolkit branch` in a phase left early before a `rewarm`: the step at which the learning rate was
    planned to end."""
    optimizer: Literal["keep", "reset"] = "keep"
    """`reset`: zero the optimizer moments before this phase."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.objective is None) == (self.mix is None):
            found = "neither" if self.mix is None else f"objective = {self.objective!r} and a mix"
            raise ValueError(f"a phase has {found}. Give it exactly one of objective and mix.")
        if (complaint := mixture_complaint(self.entries)) is not None:
            raise ValueError(f"a phase has {complaint}")
        for name, table in (("data", self.data), ("model", self.model)):
            if (value := _unwritable(table or {})) is not None:
                raise ValueError(
                    f"{name} of the phase {self.name!r} holds {value}, which a run file cannot say. Give strings, "
                    "numbers, true or false, lists and tables of them, and leave a key without a value out"
                )
        for name, own in (("lr_peak", "peak"), ("lr_warmup_steps", "warm-up"), ("lr_decay_steps", "decay")):
            if (given := getattr(self, name)) is not None and self.lr != "rewarm":
                raise ValueError(
                    f"the phase {self.name!r} has {name} = {given:g} and lr = {self.lr!r}: only a phase that "
                    f'warms up again has a {own} of its own. Set lr = "rewarm", or leave {name} out'
                )
        if (self.batch_warmup_rows is None) != (self.batch_warmup_tokens is None):
            raise ValueError(
                f"the phase {self.name!r} has batch_warmup_rows = {self.batch_warmup_rows} and "
                f"batch_warmup_tokens = {self.batch_warmup_tokens}. Give both, or leave both out"
            )
        lengths = [name for name in _LENGTHS if getattr(self, name) is not None]
        if len(lengths) != 1:
            found = " and ".join(f"{name} = {getattr(self, name)}" for name in lengths) or "no length"
            known = f"{', '.join(_LENGTHS[:-1])} and {_LENGTHS[-1]}"
            raise ValueError(f"the phase {self.name!r} has {found}. Give it exactly one of {known}.")
        return self

    @property
    def entries(self) -> tuple[MixEntry, ...]:
        """Its mix; one entry if it has a single objective."""
        return alone(self.objective) if self.objective is not None else self.mix or ()

    @property
    def name(self) -> str:
        """Names of its objectives."""
        return "+".join(entry.objective for entry in self.entries)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The phase with its objectives renamed."""
        if self.objective is not None:
            return self.model_copy(update={"objective": names[self.objective]})
        mix = tuple(entry.model_copy(update={"objective": names[entry.objective]}) for entry in self.entries)
        return self.model_copy(update={"mix": mix})

    def of_steps(self, steps: int) -> Self:
        """The phase with a length of `steps`."""
        return self.model_copy(update=dict.fromkeys(_LENGTHS) | {"steps": steps})


def _unwritable(value: object) -> str | None:
    """The first value that TOML cannot represent, in phase keys that a scheduler may have made; None if all can be."""
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return next((found for part in parts if (found := _unwritable(part)) is not None), None)
    return None if isinstance(value, str | int | float) else repr(value)
