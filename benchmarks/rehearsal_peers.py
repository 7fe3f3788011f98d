"""The watch of rank 0 over 10,239 others, for real on the loopback: they call at once, are let in, and leave.

    python benchmarks/rehearsal_peers.py [--ranks 10240]

The others are sockets of one other process; only what they say is the ranks'. Prints seconds until rank 0 has all, and
open files of rank 0.
"""

import argparse
import json
import multiprocessing
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolkit.core.files import descriptor_limit
from toolkit.engine import peers
from toolkit.engine.connections import call_first_rank

_THREADS = 256


class FirstRank:
    """Rank 0 of so many, whose exchanges are with the process that plays all others."""

    rank = 0

    def __init__(self, world_size: int, pipe: Any) -> None:
        self.world_size, self._pipe = world_size, pipe

    def broadcast(self, value: Any) -> Any:
        """Tell the others."""
        self._pipe.send(value)
        return value

    def gather(self, mine: Any) -> list[Any]:
        """Host of each, and why it could not connect, if so."""
        return [mine, *((socket.gethostname(), failure) for failure in self._pipe.recv())]


def play_others(world_size: int, pipe: Any) -> None:
    """Call rank 0 as each of the other ranks, and say which could not; stay until told."""
    descriptor_limit()
    token, port = pipe.recv()
    kept: list[socket.socket] = []

    def call(rank: int) -> str:
        try:
            kept.append(call_first_rank("127.0.0.1", port, token, rank))
        except OSError as error:
            return f"rank {rank}: {error}"
        return ""

    with ThreadPoolExecutor(_THREADS) as pool:
        pipe.send(list(pool.map(call, range(1, world_size))))
    pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=10_240)
    options = parser.parse_args()
    descriptor_limit()
    here, there = multiprocessing.Pipe()
    others = multiprocessing.Process(target=play_others, args=(options.ranks, there), daemon=True)
    others.start()
    started = time.perf_counter()
    watch = peers._connect(FirstRank(options.ranks, here), print)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    found = {"ranks": options.ranks, "is_watched": watch is not None, "seconds": round(seconds, 2)}
    print(json.dumps(found | {"open_files": len(os.listdir("/proc/self/fd"))}))
    here.send(None)


if __name__ == "__main__":
    main()
