"""Reading on several threads: results in order, the first error at once, no thread left behind."""

import threading
import time
from collections.abc import Callable

import pytest

from toolkit.data.corpus.read_through import Told, read_through


def _reader(number: int, seconds: float = 0.0) -> Callable[[Told], int]:
    def read(told: Told) -> int:
        time.sleep(seconds)
        told(10)
        return number

    return read


def test_results_come_in_order() -> None:
    readers = [_reader(number, seconds=0.02 * (number % 3)) for number in range(20)]
    assert read_through("Reading", readers, num_bytes=200) == list(range(20))
    assert read_through("Reading", [], num_bytes=0) == []


def test_an_error_ends_what_would_take_for_ever() -> None:
    def endless(told: Told) -> int:
        while True:
            told(1)
            time.sleep(0.001)

    def fails(_: Told) -> int:
        raise ValueError("this one")

    before, start = threading.active_count(), time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        read_through("Reading", [endless, fails, endless, endless], num_bytes=1)
    assert time.monotonic() - start < 5
    assert threading.active_count() == before
