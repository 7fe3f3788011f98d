"""Reading on several threads: results in order, the first error at once, no thread left behind."""

import threading
import time
from collections.abc import Callable

import pytest

from toolkit.data.corpus.files import OnRead, read_through


def _reader(number: int, seconds: float = 0.0) -> Callable[[OnRead], int]:
    def read(on_read: OnRead) -> int:
        time.sleep(seconds)
        on_read(10)
        return number

    return read


def test_results_come_in_order() -> None:
    readers = [_reader(number, seconds=0.02 * (number % 3)) for number in range(20)]
    assert read_through("Reading", readers, num_bytes=200) == list(range(20))
    assert read_through("Reading", [], num_bytes=0) == []


def test_an_error_ends_what_would_take_for_ever() -> None:
    def endless(on_read: OnRead) -> int:
        while True:
            on_read(1)
            time.sleep(0.001)

    def fails(_: OnRead) -> int:
        raise ValueError("this one")

    before, start = set(threading.enumerate()), time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        read_through("Reading", [endless, fails, endless, endless], num_bytes=1)
    assert time.monotonic() - start < 60
    assert set(threading.enumerate()) <= before
