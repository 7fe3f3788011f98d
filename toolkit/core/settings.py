"""The base of every settings class: frozen, and an unknown key is an error."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. Each field carries its meaning in a string below it; validation never changes a value.

    Types are strict: `"4"` and `true` are no numbers. Fields that are tuples here and lists in files say so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)
