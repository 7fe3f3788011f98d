"""Watch over the other ranks of a run: when one of them dies, this one ends too, wherever it waits.

A rank that waits in an NCCL collective may not notice that another one is gone before its group's timeout, ten minutes
by default, and the deepspeed launcher waits up to half a minute for each rank that it ends, one by one. So every rank
keeps a connection to rank 0, which the system closes when either process ends. A rank that leaves normally says so
first. After any other end, rank 0 notifies all ranks, and those that have not ended by themselves a little later are
ended by their own thread.

A rank that hangs keeps its connection. One that has waited too long in a collective of a step tells rank 0, which asks
all ranks where they are; those that did not arrive are then treated as dead.
"""

import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toolkit.core.errors import LostRankError, ToolkitError
from toolkit.core.text import duration, first_few
from toolkit.engine.connections import accept_ranks, call_first_rank, new_token
from toolkit.engine.ranks import Ranks
from toolkit.engine.rendezvous import listener
from toolkit.engine.stalls import StallClock, limit_seconds, place_of_rank
from toolkit.parallel.launcher import read_launcher

# Time for a rank to end by itself, with its own message, after another one is gone.
_GRACE_SECONDS = 10.0
# A collective may fail before the connection of the rank that caused the failure is closed.
_SECONDS_FOR_NEWS = 5.0
# Time for an answer: a rank's main thread may hold the interpreter lock for a while.
_ANSWER_SECONDS = 20.0
# A message: the rank that is gone, and how, if it hangs; or that the sender leaves normally; or where it is, which rank
# 0 asks for with the same number.
_MESSAGE = struct.Struct("!i400s")
_LEAVING, _PLACE = -1, -2


@contextmanager
def peers_watched(ranks: Ranks, *, end: Callable[[str], None] | None = None) -> Iterator[None]:
    """End this process if another rank dies during the body, or call `end` with a message instead; collective.

    If the body fails after another rank has died, raise `LostRankError`.
    """
    watch = _connect(ranks, end or _end_process)
    if watch is None:
        ranks.limit_waits()
        yield
        return
    watch.start()
    try:
        yield
    except ToolkitError as error:
        if error.is_agreed:
            watch.leave()
        raise
    except RuntimeError as error:
        # Torch's errors of a collective are of this type.
        if (lost := watch.lost_rank(_SECONDS_FOR_NEWS)) is not None:
            raise watch.error(*lost) from error
        raise
    watch.leave()


class _Watch(threading.Thread):
    """The connections of one rank: rank 0's to all others, or another rank's to rank 0."""

    def __init__(
        self, rank: int, connections: dict[socket.socket, int], hosts: list[str], end: Callable[[str], None]
    ) -> None:
        super().__init__(name="peers", daemon=True)
        self._rank, self._connections, self._hosts, self._end = rank, connections, hosts, end
        self._lost: tuple[int, str] | None = None
        self._is_lost, self._has_left = threading.Event(), threading.Event()
        self._looking = threading.Lock()
        self._clock, self._places = StallClock(), dict[int, str]()
        self._asked_at: float | None = None

    def run(self) -> None:
        """Wait until a rank dies, all others have left normally, or this one has."""
        with selectors.DefaultSelector() as waiting:
            for connection in self._connections:
                waiting.register(connection, selectors.EVENT_READ)
            lost = self._wait(waiting)
        if lost is not None:
            self._end_after_grace(*lost)
        self._has_left.wait()
        for connection in self._connections:
            connection.close()

    def _wait(self, waiting: selectors.BaseSelector) -> tuple[int, str] | None:
        """The rank that is gone, and how, if it hangs; None if no rank is left to watch, or this rank leaves."""
        while waiting.get_map() and not self._has_left.is_set():
            for key, _ in waiting.select(timeout=1.0):
                told, text = self._read(key.fileobj)
                if told >= 0:
                    return told, text
                if told == _LEAVING:
                    waiting.unregister(key.fileobj)
                elif self._rank == 0:
                    self._ask()
                    self._places[self._connections[key.fileobj]] = text  # type: ignore[index]
                else:
                    self._send(_PLACE, place_of_rank())
            with self._looking:
                # Not once this rank has left: at its exit, Python aborts a process with a thread inside torch.
                if not self._has_left.is_set() and (stalled := self._stalled()) is not None:
                    return stalled
        return None

    def _ask(self) -> None:
        """On rank 0, ask all ranks where they are; on another rank, have rank 0 ask, since this rank is waiting."""
        if self._asked_at is None:
            self._asked_at, self._places[self._rank] = time.monotonic(), place_of_rank()
            self._send(_PLACE)

    def _stalled(self) -> tuple[int, str] | None:
        """A rank that hangs, and how it and others hang, once known."""
        if self._asked_at is None:
            if self._clock.has_stalled():
                self._ask()
            return None
        waited = time.monotonic() - self._asked_at
        if self._rank == 0 and (waited > _ANSWER_SECONDS or len(self._places) == len(self._hosts)):
            return missing_ranks(self._hosts, self._places)
        # After that long, rank 0 itself hangs, with all its threads.
        others = dict.fromkeys(range(1, len(self._hosts)), "")
        return missing_ranks(self._hosts, others) if waited > 2 * _ANSWER_SECONDS else None

    def lost_rank(self, seconds: float) -> tuple[int, str] | None:
        """The rank that died, and how, if it hangs; None if none did within `seconds` (longer if ranks are asked)."""
        self._is_lost.wait(seconds if self._asked_at is None else 2 * _ANSWER_SECONDS)
        return self._lost

    def error(self, lost: int, how: str) -> LostRankError:
        """The error that ends this rank after `lost` died or hung."""
        what = (
            f"a collective of a step has waited {duration(limit_seconds())} for {how}. DEEPSPEED_TIMEOUT is how many "
            "minutes it may take."
            if how
            else f"rank {lost} on {self._hosts[lost]} has ended, and the run with it. If it left no message above or "
            "in the log of its machine, it was killed, as the system does when memory runs out, or the machine is gone."
        )
        remedy = "Start the same command again, on all machines: it resumes from the newest checkpoint."
        error = LostRankError(f"{what}\n{remedy}")
        error.is_told_here = self._rank == (1 if lost == 0 else 0)
        return error

    def leave(self) -> None:
        """Tell the others that this rank leaves normally."""
        with self._looking:
            # First: once this rank has left, its thread closes the connections.
            self._send(_LEAVING)
            self._has_left.set()

    def _send(self, message: int, text: str = "") -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sendall(_MESSAGE.pack(message, text.encode()))

    def _read(self, connection: Any) -> tuple[int, str]:
        """A message from the other end, or the rank there if it is gone."""
        try:
            message = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
        except OSError:
            message = b""
        if len(message) < _MESSAGE.size:
            return self._connections[connection], ""
        told, text = _MESSAGE.unpack(message)
        return told, text.rstrip(b"\0").decode(errors="replace")

    def _end_after_grace(self, lost: int, how: str) -> None:
        self._lost = (lost, how)
        self._is_lost.set()
        if self._rank == 0:
            self._send(lost, how)
        if not self._has_left.wait(_GRACE_SECONDS):
            error = self.error(lost, how)
            self._end(f"error: rank {self._rank}: {error}" if error.is_told_here else "")


def _connect(ranks: Ranks, end: Callable[[str], None]) -> _Watch | None:
    """Connect every rank to rank 0; None if there is only one rank, or a connection fails."""
    if ranks.world_size == 1:
        return None
    launched = read_launcher()
    waiting = listener(launched) if ranks.rank == 0 else None
    token, port = ranks.broadcast((new_token(), waiting.getsockname()[1]) if waiting else (b"", 0))
    connections: dict[socket.socket, int] = {}
    failure = ""
    try:
        if waiting is None:
            connections[call_first_rank(launched.main_address, port, token, ranks.rank)] = 0
        else:
            accept_ranks(waiting, token, connections, ranks.world_size - 1)
    except OSError as error:
        failure = f"rank {ranks.rank} on {socket.gethostname()}: {error}"
    told = ranks.gather((socket.gethostname(), failure))
    # If rank 0 waited in vain, another rank's message explains it better.
    if failures := [failed for _, failed in reversed(told) if failed]:
        if ranks.rank == 0:
            print(f"ranks cannot connect to rank 0 and do not watch one another ({failures[0]})", flush=True)
        for connection in connections:
            connection.close()
        return None
    return _Watch(ranks.rank, connections, [host for host, _ in told], end)


def missing_ranks(hosts: Sequence[str], places: Mapping[int, str]) -> tuple[int, str]:
    """The first rank that hangs, and how all of them do, by each rank's place: empty if it waits, absent if silent."""
    silent = "does not answer: its process is stopped, or its machine hangs"
    told = [places.get(rank, silent) for rank in range(len(hosts))]
    missing = {rank: f"rank {rank} on {hosts[rank]}, which {place}" for rank, place in enumerate(told) if place}
    none_missing = "a network or a device that fails: all ranks are there (NCCL_DEBUG=INFO tells more)"
    return min(missing, default=1), first_few(list(missing.values())) or none_missing


def _end_process(message: str) -> None:
    if message:
        print(message, file=sys.stderr, flush=True)
    os._exit(1)
