"""Numeric environment variables that the toolkit or DeepSpeed reads, checked before either does."""

import os
import re

from toolkit.core.errors import SettingsError

_OMP_NUM_THREADS = "OMP_NUM_THREADS"
_NUMBERS = {
    _OMP_NUM_THREADS: (1, 65_536, "CPU threads; of a list, as 4,2, the first number counts"),
    # torch's store counts in nanoseconds.
    "DEEPSPEED_TIMEOUT": (1, 1_000_000, "whole minutes"),
    **dict.fromkeys(("RANK", "LOCAL_RANK"), (0, 10_000_000, "set by a launcher")),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), (1, 10_000_000, "set by a launcher")),
}
"""Minimum, maximum and meaning of each."""


def check_numbers() -> None:
    """Raise `SettingsError` if one is not a number in its range; unset the empty ones."""
    for name, (least, most, meaning) in _NUMBERS.items():
        value = os.environ.get(name, "")
        if not value.strip():
            os.environ.pop(name, None)
            continue
        first = value.partition(",")[0] if name == _OMP_NUM_THREADS else value
        if not (re.fullmatch(r"\s*[0-9]{1,9}\s*", first) and least <= int(first) <= most):
            raise SettingsError(
                f"the environment has {name}={value}; expected a whole number from {least:,} to {most:,} ({meaning}).\n"
                "Set it to one, or unset it."
            )


def wait_passively() -> None:
    """Let OpenMP threads sleep while they wait, unless OMP_WAIT_POLICY is set. Call it before torch is imported.

    Spinning threads use cores that other processes need: everything on a shared machine is then several times slower.
    """
    os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY") or "PASSIVE"


def given_threads() -> int | None:
    """CPU threads from OMP_NUM_THREADS; None if unset."""
    value = os.environ.get(_OMP_NUM_THREADS)
    return int(value.partition(",")[0]) if value else None
