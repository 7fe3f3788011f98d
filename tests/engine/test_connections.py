"""Rank 0 lets the other ranks in, whoever else calls. Ranks and strangers are sockets of threads here."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from toolkit.engine import connections
from toolkit.engine.connections import accept_ranks, call_first_rank, new_token

_TOKEN = new_token()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        yield waiting


@pytest.fixture
def stranger(listener):
    """Calls, says something and stays."""
    with contextlib.ExitStack() as stack:

        def call(said=b""):
            connection = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=30))
            connection.sendall(said)
            return connection

        yield call


def _meet(listener, num_ranks, *, late=0.0):
    """Rank 0 and others that call, the last one `late` seconds after the rest; the ranks that are in, and seconds."""
    host, port = listener.getsockname()

    def call(rank):
        time.sleep(late if rank == num_ranks else 0.0)
        call_first_rank(host, port, _TOKEN, rank).close()

    found, began = {}, time.monotonic()
    with ThreadPoolExecutor(num_ranks) as pool:
        called = pool.map(call, range(1, num_ranks + 1))
        accept_ranks(listener, _TOKEN, found, num_ranks)
        list(called)
    for connection in found:
        connection.close()
    return sorted(found.values()), time.monotonic() - began


def test_ranks_that_come_late_get_in_past_silent_strangers(listener, stranger):
    for _ in range(3):
        stranger()
        stranger(_TOKEN[:5])
        stranger(b"x" * 16)
    ranks, seconds = _meet(listener, 3, late=0.5)
    assert ranks == [1, 2, 3]
    assert seconds < 1.9  # before any of the strangers is sent away


def test_a_silent_stranger_is_sent_away_and_a_wrong_token_at_once(monkeypatch, listener, stranger):
    monkeypatch.setattr(connections, "_SECONDS_OF_A_STRANGER", 0.6)
    silent, wrong, began, gone = stranger(), stranger(b"x" * 16), time.monotonic(), {}

    def watch(name, connection):
        assert connection.recv(1) == b""
        gone[name] = time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        watched = [pool.submit(watch, *each) for each in (("silent", silent), ("wrong", wrong))]
        _meet(listener, 1, late=1.2)
        for each in watched:
            each.result()
    assert gone["wrong"] < 0.6 <= gone["silent"] < 1.2


def test_a_token_that_comes_in_pieces_is_a_token(listener, stranger):
    said, rank = connections._CALL.pack(_TOKEN, 2), stranger()

    def say():
        for byte in said:
            rank.sendall(bytes([byte]))
            time.sleep(0.005)
        assert rank.recv(1) == connections._HEARD
        rank.sendall(connections._HEARD)

    found = {}
    with ThreadPoolExecutor(1) as pool:
        saying = pool.submit(say)
        accept_ranks(listener, _TOKEN, found, 1)
        saying.result()
    assert list(found.values()) == [2]
    next(iter(found)).close()


def test_of_many_strangers_few_are_kept(monkeypatch, listener, stranger):
    monkeypatch.setattr(connections, "_MOST_STRANGERS", 4)
    most, send_away = [0], connections._Callers._send_away

    def counted(callers, connection):
        most[0] = max(most[0], len(callers._said))
        send_away(callers, connection)

    monkeypatch.setattr(connections._Callers, "_send_away", counted)
    for _ in range(60):
        stranger()
    assert _meet(listener, 2, late=0.3)[0] == [1, 2]
    assert most[0] == 4 + 2 + 1


def test_the_meeting_ends_however_many_strangers_call(monkeypatch, listener, stranger):
    monkeypatch.setattr(connections, "_MEETING_SECONDS", 0.5)
    accept = connections._Callers._accept

    def another(callers):
        stranger()
        accept(callers)

    monkeypatch.setattr(connections._Callers, "_accept", another)
    stranger()
    with pytest.raises(TimeoutError, match="2 of 2 ranks did not call"):
        accept_ranks(listener, _TOKEN, {}, 2)
