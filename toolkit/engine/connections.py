"""Connections of every rank to rank 0, over which they watch one another; strangers that call are sent away.

A rank says a token that rank 0 has given to all over their process group, and is heard. Its word that it knows so ends
the greeting: a call that finds too many waiting may seem to be taken, and is lost.
"""

import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

# To be connected, with a new call if one is not answered.
_CONNECT_SECONDS, _SECONDS_OF_A_CALL = 20.0, 5.0
# Until rank 0 has all: those that can call do so at once, but for what the system keeps from it.
_MEETING_SECONDS = 60.0
# Of a caller without the token; so many more than there are ranks are listened to at a time, the newest ones.
_SECONDS_OF_A_STRANGER, _MOST_STRANGERS = 2.0, 64
# A machine that vanishes closes nothing: it is asked after 15 quiet seconds, and is gone after three silent ones of 5.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# What a rank says: the token and its number.
_TOKEN_BYTES = 16
_CALL = struct.Struct(f"!{_TOKEN_BYTES}si")
_HEARD = b"."


def new_token() -> bytes:
    """Token that tells ranks from other connections."""
    return secrets.token_bytes(_TOKEN_BYTES)


def call_first_rank(host: str, port: int, token: bytes, rank: int) -> socket.socket:
    """Call rank 0 until it answers; an OSError where it does not."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        connection = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        connection.settimeout(_SECONDS_OF_A_CALL)
        with suppress(OSError):
            connection.sendall(_CALL.pack(token, rank))
            if connection.recv(len(_HEARD)):
                connection.sendall(_HEARD)
                return _kept_alive(connection)
        connection.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{host}:{port} does not answer")


def accept_ranks(listener: socket.socket, token: bytes, connections: dict[socket.socket, int], number: int) -> None:
    """Add so many ranks that call to `connections`; a TimeoutError where they do not in time. Closes the listener."""
    deadline = time.monotonic() + _MEETING_SECONDS
    callers = _Callers(listener, token, number + _MOST_STRANGERS)
    try:
        while len(connections) < number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{number - len(connections):,} of {number:,} ranks did not call")
            connections.update(callers.ranks())
    finally:
        callers.close()


class _Callers:
    """All that call and have not yet shown that they are ranks; none of them is waited for."""

    def __init__(self, listener: socket.socket, token: bytes, most_strangers: int) -> None:
        self._listener, self._token, self._most_strangers = listener, token, most_strangers
        self._said: dict[socket.socket, bytes] = {}
        # Those without the token, by the time at which they are sent away.
        self._strangers: dict[socket.socket, float] = {}
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ)
        listener.setblocking(False)

    def ranks(self) -> Iterator[tuple[socket.socket, int]]:
        """Connections that identified themselves as ranks in time."""
        for key, _ in self._waiting.select(timeout=0.1):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and (rank := self._hear(key.fileobj)) is not None:
                yield _kept_alive(key.fileobj), rank
        while self._strangers:
            oldest, until = next(iter(self._strangers.items()))
            if len(self._strangers) <= self._most_strangers and time.monotonic() < until:
                break
            self._send_away(oldest)

    def close(self) -> None:
        """Send all away that are left, and stop listening."""
        for connection in list(self._said):
            self._send_away(connection)
        self._waiting.close()
        self._listener.close()

    def _accept(self) -> None:
        # One may have hung up by now.
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._waiting.register(connection, selectors.EVENT_READ)
            self._said[connection], self._strangers[connection] = b"", time.monotonic() + _SECONDS_OF_A_STRANGER

    def _hear(self, connection: socket.socket) -> int | None:
        """The rank at the other end, once it knows that it is heard: till then it may give up, and call again."""
        said = self._said[connection]
        try:
            more = connection.recv(_CALL.size + len(_HEARD) - len(said))
        except OSError:
            more = b""
        self._said[connection] = said = said + more
        has_token = hmac.compare_digest(said[:_TOKEN_BYTES], self._token)
        if not more or (len(said) >= _TOKEN_BYTES and not has_token):
            self._send_away(connection)
        elif len(said) >= _CALL.size:
            self._strangers.pop(connection, None)
            if len(said) > _CALL.size:
                self._waiting.unregister(connection)
                del self._said[connection]
                rank: int = _CALL.unpack(said[: _CALL.size])[1]
                return rank
            with suppress(OSError):
                connection.send(_HEARD)
        return None

    def _send_away(self, connection: socket.socket) -> None:
        self._waiting.unregister(connection)
        self._said.pop(connection)
        self._strangers.pop(connection, None)
        connection.close()


def _kept_alive(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    return connection
