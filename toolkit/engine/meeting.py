"""Rendezvous of ranks before the process group, which would not say which are missing; and their measured speed."""

import os
import socket
import time
import timeit
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from toolkit.core.errors import SettingsError
from toolkit.core.text import first_few
from toolkit.engine.ranks import Ranks
from toolkit.engine.rendezvous import store_on_loopback
from toolkit.engine.stalls import timeout_seconds
from toolkit.parallel.launcher import read_launcher, unreachable

# Missing ranks are named after this long without any arrival.
_SECONDS_OF_SILENCE = 120.0
_SECONDS_BETWEEN_LOOKS = 0.2
# A matmul takes milliseconds: short enough that some tries are undisturbed.
_MATRIX_WIDTHS = {"cpu": 512, "cuda": 4096}
ALL_REDUCE_BYTES = 64 << 20


def meet() -> Store:
    """Wait for all ranks of the launch. The process group shares this store's server: keep it until all have joined.

    Raises:
        SettingsError: this rank cannot reach rank 0; or, on all ranks that can, some do not arrive.
    """
    ours = read_launcher()
    host, port = ours.main_address, int(os.environ.get("MASTER_PORT", "0"))
    # torchrun has its own process for the store.
    is_here = ours.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if not is_here:
            _connect(host, port)
        server = store_on_loopback(ours) or TCPStore(
            host, port, None, is_here, wait_for_workers=False, multi_tenant=True
        )
    except (OSError, dist.DistError) as error:
        raise unreachable(str(error)) from None
    store = PrefixStore("meeting", server)
    store.set_timeout(timedelta(days=1))
    store.set(f"{ours.rank}", "")
    if ours.rank == 0:
        absent, last = list(range(ours.world_size)), time.monotonic()
        while absent and time.monotonic() - last < _SECONDS_OF_SILENCE:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            still = [rank for rank in absent if not store.check([f"{rank}"])]
            absent, last = still, last if still == absent else time.monotonic()
        store.set("missing", first_few([f"rank {rank}" for rank in absent]))
    if missing := store.get("missing").decode():
        # Let the others read it before rank 0 exits.
        time.sleep(5 * _SECONDS_BETWEEN_LOOKS)
        refusal = SettingsError(
            f"of {ours.world_size:,} ranks, {missing} did not arrive at {host}:{port}.\nRead the logs of their "
            "machines: each has to be started, and to reach that address (--master_addr, --master_port, firewall)."
        )
        refusal.is_agreed = True
        raise refusal
    return store


def _connect(host: str, port: int) -> None:
    """Check that rank 0 is reachable, since torch's own error is a page long; retry, since it may start later."""
    deadline = time.monotonic() + timeout_seconds()
    while True:
        try:
            return socket.create_connection((host, port), timeout=timeout_seconds()).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def measure_speed(ranks: Ranks) -> tuple[float, float]:
    """Best-case seconds for a matmul on this rank's device, and for an all-reduce of `ALL_REDUCE_BYTES` over all ranks;
    collective.
    """
    matrix = torch.ones(2 * [_MATRIX_WIDTHS[ranks.device.type]], device=ranks.device)
    values = torch.zeros(ALL_REDUCE_BYTES // 4, device=ranks.device)
    # `item` waits for the device.
    own = timeit.repeat(lambda: (matrix @ matrix)[0, 0].item(), number=1, repeat=100)
    together = timeit.repeat(lambda: (dist.all_reduce(values), values[0].item()), number=1, repeat=6)
    return min(own), min(together)
