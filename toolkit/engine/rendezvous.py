"""Rendezvous of ranks: on the loopback if all are on this machine; by default torch listens on every network."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from toolkit.parallel.launcher import LOOPBACK, Launched

_BACKLOG = 4096
_LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"


def meeting_place(launched: Launched) -> str:
    """The `init_method` of the process group; also sets, in the environment, where torch, gloo and NCCL listen.

    Interfaces that the user has set are kept.
    """
    if launched.is_one_machine:
        os.environ["MASTER_ADDR"] = LOOPBACK
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, _LOOPBACK_INTERFACE)
    return "alone://" if launched.world_size == 1 else "attempt://"


def _alone(url: str, **options: object) -> Iterator[tuple[Store, int, int]]:
    yield HashStore(), 0, 1


def _by_attempt(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """From the environment, by attempt: torchrun's one store for all attempts has addresses of ranks that ended."""
    for store, rank, world_size in rendezvous("env://", **options):
        yield PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store), rank, world_size


for name, handler in {"alone": _alone, "attempt": _by_attempt}.items():
    register_rendezvous_handler(name, handler)  # type: ignore[no-untyped-call]


def store_on_loopback(launched: Launched) -> TCPStore | None:
    """The store's server, on rank 0 of a single-machine run; None on other ranks, or if torchrun has one.

    Stores that torch creates at its port share it. Kept until `release_store`. Raise `OSError` if the port is in use.
    """
    if launched.rank or not launched.is_one_machine or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    return _server(int(os.environ.get("MASTER_PORT", "0")))


@cache
def _server(port: int) -> TCPStore:
    descriptor = socket.create_server((LOOPBACK, port), backlog=_BACKLOG).detach()
    return TCPStore(LOOPBACK, port, None, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=descriptor)


def release_store() -> None:
    """Leave the store to the process group."""
    _server.cache_clear()


def listener(launched: Launched) -> socket.socket:
    """A listening socket for the other ranks, at a port that the system chooses."""
    if launched.is_one_machine:
        return socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", 0), backlog=_BACKLOG)
