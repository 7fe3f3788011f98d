"""Connections from every rank to rank 0, over which ranks watch one another; other callers are disconnected.

A rank sends a token that rank 0 has broadcast over the process group, and rank 0 acknowledges it. The rank confirms the
acknowledgment: a connection that meets a full backlog may seem accepted, and is lost.
"""

import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

# Time limits for connecting, and for each attempt before the next one.
_CONNECT_SECONDS, _SECONDS_OF_A_CALL = 20.0, 5.0
# Time limit for rank 0 to hear all: ranks that can call do so at once, except for calls that the system withholds.
_MEETING_SECONDS = 60.0
# Time limit of a caller without the token; up to this many more such callers than ranks are kept, the newest ones.
_SECONDS_OF_A_STRANGER, _MOST_STRANGERS = 2.0, 64
# A machine that vanishes closes nothing: it is probed after 15 idle seconds, and gone after 3 unanswered probes of 5 s.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
# A rank's message: the token and its number.
_TOKEN_BYTES = 16
_CALL = struct.Struct(f"!{_TOKEN_BYTES}si")
_HEARD = b"."


def new_token() -> bytes:
    """Random token that distinguishes ranks from other callers."""
    return secrets.token_bytes(_TOKEN_BYTES)


def call_first_rank(host: str, port: int, token: bytes, rank: int) -> socket.socket:
    """Connect to rank 0, retrying until it answers; raise `OSError` if it does not."""
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
    """Add `number` calling ranks to `connections`; raise `TimeoutError` if they are late. Closes the listener."""
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
    """Callers that have not yet shown that they are ranks; none of them is waited for."""

    def __init__(self, listener: socket.socket, token: bytes, most_strangers: int) -> None:
        self._listener, self._token, self._most_strangers = listener, token, most_strangers
        self._said: dict[socket.socket, bytes] = {}
        # Callers that have not sent the token, with the time at which each is disconnected.
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
        """Disconnect all remaining callers, and stop listening."""
        for connection in list(self._said):
            self._send_away(connection)
        self._waiting.close()
        self._listener.close()

    def _accept(self) -> None:
        # The caller may have hung up by now.
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._waiting.register(connection, selectors.EVENT_READ)
            self._said[connection], self._strangers[connection] = b"", time.monotonic() + _SECONDS_OF_A_STRANGER

    def _hear(self, connection: socket.socket) -> int | None:
        """The rank at the other end, once it has confirmed the acknowledgment: until then it may give up and retry."""
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
