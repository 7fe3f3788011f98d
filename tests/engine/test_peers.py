"""Ranks that watch one another: who is told of a death, and who leaves in order. Ranks are threads here."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from toolkit.core.errors import LostRankError, SettingsError
from toolkit.engine import connections, peers, rendezvous
from toolkit.engine.peers import peers_watched

_NUM_RANKS = 3


class _Meeting:
    """What threads exchange in place of a process group."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


@dataclass
class _Ranks:
    rank: int
    meeting: _Meeting

    @property
    def world_size(self) -> int:
        return len(self.meeting.values)

    def gather(self, mine: Any) -> list[Any]:
        self.meeting.barrier.wait(timeout=60)
        self.meeting.values[self.rank] = mine
        self.meeting.barrier.wait(timeout=60)
        return list(self.meeting.values)

    def limit_waits(self) -> None:
        """Nothing here waits for long."""

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(peers, "_GRACE_SECONDS", 0.2)
    start, watches = peers._Watch.start, []

    def noted(watch):
        watches.append(watch)
        start(watch)

    monkeypatch.setattr(peers._Watch, "start", noted)
    yield
    # Of a rank that fails the process ends, and its watch with it.
    for watch in watches:
        watch._has_left.set()


def _run(bodies, ended=None):
    """Each body in a watch of its own; what each rank was ended with, and what each body raised."""
    meeting, ended = _Meeting(len(bodies)), {} if ended is None else ended

    def rank(number):
        try:
            with peers_watched(_Ranks(number, meeting), end=lambda message: ended.update({number: message})):
                bodies[number]()
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(bodies)) as pool:
        raised = list(pool.map(rank, range(len(bodies))))
    time.sleep(0.1)
    return ended, raised


@pytest.mark.parametrize("dead", range(_NUM_RANKS))
def test_all_others_are_ended_when_one_dies(monkeypatch, dead):
    """They hang: only their threads can end them. One of them says who died."""
    connect = peers._connect

    def connect_and_die(ranks, end):
        watch = connect(ranks, end)
        if ranks.rank == dead:
            for connection in watch._connections:
                connection.shutdown(2)
                connection.close()
            return None
        return watch

    def hang_until_all_are_told():
        deadline = time.monotonic() + 60
        while len(ended) < _NUM_RANKS - 1 and time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr(peers, "_connect", connect_and_die)
    ended = {}
    _, raised = _run([hang_until_all_are_told] * _NUM_RANKS, ended)
    assert sorted(ended) == [rank for rank in range(_NUM_RANKS) if rank != dead]
    told = {rank: message for rank, message in ended.items() if message}
    teller = 1 if dead == 0 else 0
    assert list(told) == [teller]
    assert told[teller].startswith(f"error: rank {teller}: rank {dead} on ")
    assert raised == [None] * _NUM_RANKS


def test_more_ranks_call_than_the_system_keeps_waiting(monkeypatch):
    monkeypatch.setattr(rendezvous, "_BACKLOG", 1)
    accept = connections._Callers._accept

    def accept_late(callers):
        time.sleep(0.1)
        accept(callers)

    monkeypatch.setattr(connections._Callers, "_accept", accept_late)
    monkeypatch.setattr(connections, "_SECONDS_OF_A_CALL", 0.5)
    monkeypatch.setattr(connections, "_MEETING_SECONDS", 20.0)
    monkeypatch.setattr(_Ranks, "limit_waits", lambda _: pytest.fail("the ranks do not watch one another"))
    ended, raised = _run([lambda: None] * 16)
    assert (ended, raised) == ({}, [None] * 16)


def test_nobody_is_ended_when_ranks_leave_one_after_another():
    ended, raised = _run([lambda: time.sleep(0.5), lambda: None, lambda: time.sleep(0.1)])
    assert (ended, raised) == ({}, [None] * 3)


def test_a_rank_that_leaves_slowly_has_said_so_before_its_connection_closes(monkeypatch):
    send = peers._Watch._send

    def send_late(watch, message, text=""):
        if message == peers._LEAVING:
            time.sleep(1.2)  # longer than its thread waits for news
        send(watch, message, text)

    monkeypatch.setattr(peers._Watch, "_send", send_late)
    assert _run([lambda: time.sleep(2), lambda: None]) == ({}, [None] * 2)


def test_an_error_on_which_all_agreed_ends_nobody_else():
    def agreed():
        error = SettingsError("all of us")
        error.is_agreed = True
        raise error

    ended, raised = _run([lambda: time.sleep(0.5), agreed, agreed])
    assert ended == {}
    assert [str(error) for error in raised] == ["None", "all of us", "all of us"]


def test_a_broken_collective_is_put_down_to_the_rank_that_died(monkeypatch):
    """Torch says only that a connection is closed."""
    connect, closing = peers._connect, threading.Event()

    def connect_and_die(ranks, end):
        watch = connect(ranks, end)
        if ranks.rank == 1:
            closing.wait(60)
            for connection in watch._connections:
                connection.shutdown(2)
                connection.close()
            return None
        return watch

    def broken():
        closing.set()
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(peers, "_connect", connect_and_die)
    _, (error, _) = _run([broken, lambda: None])
    assert isinstance(error, LostRankError)
    assert str(error).startswith("rank 1 on ")
    assert str(error.__cause__) == "Connection closed by peer"


def test_an_error_of_this_rank_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(peers, "_SECONDS_FOR_NEWS", 0.2)

    def wrong():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    _, raised = _run([wrong, lambda: None])
    assert type(raised[0]) is RuntimeError


def test_a_run_goes_on_where_ranks_cannot_connect(monkeypatch, capsys):
    def refused(*call):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(peers, "call_first_rank", refused)
    monkeypatch.setattr(connections, "_MEETING_SECONDS", 0.3)
    assert _run([lambda: None] * 2) == ({}, [None] * 2)
    assert "do not watch one another (rank 1 on " in capsys.readouterr().out


def _hang(monkeypatch, places, stalled, silent=()):
    """Ranks that do not end by themselves, of which `stalled` have waited for too long; what each was ended with."""
    send = peers._Watch._send

    def send_unless_silent(watch, message, text=""):
        if watch._rank not in silent:
            send(watch, message, text)

    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(peers._Watch, "_send", send_unless_silent)
    monkeypatch.setattr(peers, "place_of_rank", lambda: places[threading.current_thread()._rank])
    monkeypatch.setattr(peers.StallClock, "has_stalled", lambda clock: threading.current_thread()._rank in stalled)
    ended = {}

    def until_all_are_ended():
        deadline = time.monotonic() + 60
        while len(ended) < len(places) and time.monotonic() < deadline:
            time.sleep(0.01)

    _run([until_all_are_ended] * len(places), ended)
    return {rank: message for rank, message in ended.items() if message}


@pytest.mark.parametrize("stalled", [{0, 1}, {1}])
def test_a_rank_that_hangs_is_named_by_rank_0(monkeypatch, stalled):
    told = _hang(monkeypatch, ["", "", "is at toolkit/data/corpus/shards.py:120 in read"], stalled)
    assert list(told) == [0]
    assert told[0].startswith("error: rank 0: a collective of a step has waited 0:09:00 for rank 2 on ")
    assert ", which is at toolkit/data/corpus/shards.py:120 in read. DEEPSPEED_TIMEOUT" in told[0]
    assert "rank 1" not in told[0]


@pytest.mark.parametrize("silent", [2, 0])
def test_a_rank_that_says_nothing_is_named(monkeypatch, silent):
    told = _hang(monkeypatch, ["", "", ""], {1, 2}, silent={silent})
    told = told[0 if silent else 1]
    assert f"for rank {silent} on " in told
    assert ", which does not answer: its process is stopped" in told


def test_where_all_wait_it_is_the_network():
    assert "all ranks are there (NCCL_DEBUG" in peers.missing_ranks(["ann", "bob"], {0: "", 1: ""})[1]


def test_a_rank_that_has_left_is_not_inside_of_torch():
    """A thread that comes back from torch while Python ends aborts the process: it had let go of process groups."""
    begun, ended = [], []

    class Clock:
        def has_stalled(self):
            begun.append(1)
            time.sleep(0.2)
            ended.append(1)
            return False

    ours, theirs = socket.socketpair()
    watch = peers._Watch(1, {ours: 0}, ["ann", "bob"], pytest.fail)
    watch._clock = Clock()
    watch.start()
    theirs.sendall(peers._MESSAGE.pack(peers._PLACE, b""))
    while not begun:
        time.sleep(0.01)
    watch.leave()
    assert ended == begun
    theirs.sendall(peers._MESSAGE.pack(peers._PLACE, b""))
    watch.join(10)
    assert ended == begun == [1]
    theirs.close()
