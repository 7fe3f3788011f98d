"""What pydantic finds, as a person reads it."""

from typing import Annotated, Any, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from toolkit.core.settings import Settings, explain


class Inner(Settings):
    size: Annotated[int, Field(ge=1)] = 1
    """How large."""
    is_on: bool = False
    rate: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class Outer(Settings):
    inner: Inner = Inner()
    low: int = 0
    high: int = 1
    steps: tuple[int, ...] = Field(default=(1,), min_length=1, strict=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low is not below high. Change one.")
        return self


def _said(values: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    return explain(caught.value, Outer, **options)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"inner": {"size": 0}}, "invalid value for inner.size: expected at least 1, got 0. Meaning: How large."),
        ({"inner": {"size": "4"}}, "invalid value for inner.size: expected an integer without quotes, got '4'."),
        ({"inner": {"size": "four"}}, "invalid value for inner.size: expected an integer, got 'four'."),
        (
            {"inner": {"is_on": "true"}},
            "invalid value for inner.is_on: expected true or false without quotes, got 'true'.",
        ),
        ({"inner": {"is_on": "1"}}, "invalid value for inner.is_on: expected true or false, got '1'."),
        ({"inner": {"rate": "1e-3"}}, "invalid value for inner.rate: expected a number without quotes, got '1e-3'."),
        ({"inner": {"rate": float("inf")}}, "invalid value for inner.rate: expected a finite number, got inf."),
        ({"inner": 3}, "invalid value for inner: expected a table, got 3. Its keys: size, is_on, rate."),
        ({"sise": 1}, "unknown key 'sise'. Known keys here: inner, low, high, steps."),
        ({"size": 1}, "unknown key 'size'. Did you mean 'inner.size'? Known keys here: inner, low, high, steps."),
        ({"inner": {"sise": 1}}, "unknown key 'inner.sise'. Did you mean 'size'? Known keys here: size, is_on, rate."),
        ({"steps": []}, "invalid value for steps: expected a list of 1 or more items, got []."),
        ({"inner": {"low": 1}}, "unknown key 'inner.low'. Did you mean 'low'? Known keys here: size, is_on, rate."),
    ],
)
def test_a_finding_names_the_key_the_value_and_what_would_be_right(values: dict[str, Any], said: str) -> None:
    assert _said(values).startswith(said)


def test_a_rule_about_the_whole_speaks_for_itself() -> None:
    assert _said({"low": 2}) == "low is not below high. Change one."
    assert _said({"low": 2}, group="data") == "invalid value for data: low is not below high. Change one."


def test_every_finding_has_a_line() -> None:
    said = _said({"low": "a", "high": 1.5}, group="data").splitlines()
    assert [line.split(":")[0] for line in said] == ["invalid value for data.low", "invalid value for data.high"]
    # pydantic also calls the list too short, since no item of it is valid.
    assert _said({"steps": ["a"]}) == "invalid value for steps.0: expected an integer, got 'a'."
