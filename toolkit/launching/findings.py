"""Comparison of what the ranks of a run found: table rows with check, expected, found and remedy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolkit.core.text import counted, first_few
from toolkit.engine.meeting import ALL_REDUCE_BYTES
from toolkit.training.agreement import Input, differences
from toolkit.training.slow_ranks import slow_ranks

_REMEDIES = {
    "packages": "Install the same packages on every machine.",
    "device": "Run on machines with the same devices.",
    "run": "Give every rank the same run file, with absolute paths in it.",
    "data": "Copy the same files to every machine; `toolkit verify` names damaged ones.",
    "tokenizer": "Copy the corpus again, with its folder tokenizer/.",
    "shared folder": "Set run.dir to a folder that all machines share, on a file system with locks (flock).",
    "start": "Fix the error on its machine.",
    "clock": "Synchronize it with NTP.",
    "disk": "Free space, set run.dir to another disk, or keep fewer checkpoints (checkpoint.keep).",
    "speed": "Look at what else runs there, and at the clock and temperature of the device.",
    "all-reduce": "Name the fast network with NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME (docs/clusters.md); "
    "see NCCL_DEBUG=INFO.",
}
_SAME = ("packages", "device", "run", "data", "tokenizer", "shared folder")
"""Checks of values that must be the same on all ranks."""
_SECONDS_APART = 5.0
_LEAST_SECONDS_SLOWER = 1e-3
# Below this, a run on such devices waits for its gradients most of the time.
_LEAST_RATES = {"cpu": 1e7, "cuda": 1e9}


@dataclass
class Facts:
    """Findings of a rank."""

    host: str
    same: dict[str, dict[str, str]] = field(default_factory=dict)
    """Values by check and name."""
    error: str = ""
    """Error that would end the run on this machine."""
    clock: float = 0.0
    """Unix time, taken by all ranks at once."""
    free: float = math.inf
    """Bytes on the disk of the run folder; `needed` is what checkpoints will take."""
    needed: float = 0.0
    left: str = ""
    """Message on leftovers of removed checkpoints there."""
    speed: tuple[float, float] = (1.0, 1.0)
    """Result of `measure_speed`."""


class Row(NamedTuple):
    """A check; without a remedy, it found what was expected."""

    check: str
    expected: str
    found: str
    remedy: str = ""


def findings(ranks: Sequence[Facts], *, device: str) -> list[Row]:
    """Rows of all checks, for ranks on devices of one type; checks that rank 0 could not make have none."""

    def row(check: str, expected: str, found: str, wrong: Mapping[int, str]) -> Row:
        told = [f"rank {rank} on {ranks[rank].host}: {text}" for rank, text in wrong.items()]
        return Row(check, expected, first_few(told), _REMEDIES[check]) if told else Row(check, expected, found)

    there = f"{counted(len(ranks), 'rank')} on {counted(len({one.host for one in ranks}), 'machine')}"
    errors = {rank: one.error for rank, one in enumerate(ranks) if one.error}
    ahead = [one.clock - ranks[0].clock for one in ranks]
    off = {rank: f"{by:+,.0f} s" for rank, by in enumerate(ahead) if abs(by) > _SECONDS_APART}
    needed, least_free = max(one.needed for one in ranks), min(one.free for one in ranks)
    full = {rank: _gigabytes(one.free) for rank, one in enumerate(ranks) if one.free < needed}
    own = [one.speed[0] for one in ranks]
    slow = {rank: f"{1e3 * own[rank]:,.1f} ms" for rank in slow_ranks(own, least_seconds=_LEAST_SECONDS_SLOWER)}
    # Bus bandwidth as in nccl-tests: what each rank of a ring sends. The last rank to arrive waits for no other.
    rate = ALL_REDUCE_BYTES * 2 * (len(ranks) - 1) / len(ranks) / min(one.speed[1] for one in ranks)
    found = f"{rate / 1e6:,.0f} MB/s" if len(ranks) > 1 else "no other rank"
    remedy = _REMEDIES["all-reduce"] if len(ranks) > 1 and rate < _LEAST_RATES[device] else ""
    disk = row("disk", f"{_gigabytes(needed)} for checkpoints", _gigabytes(least_free) + ranks[0].left, full)
    return [
        row("start", "possible on each machine", there, errors),
        *[_same(check, ranks) for check in _SAME if ranks[0].same.get(check)],
        row("clock", f"within {_SECONDS_APART:.0f} s of rank 0's", f"within {max(map(abs, ahead)):.1f} s", off),
        *([disk] if least_free < math.inf else []),
        row("speed", "at most 1.5 times the median", f"{1e3 * min(own):,.1f} to {1e3 * max(own):,.1f} ms", slow),
        Row("all-reduce", f"{_LEAST_RATES[device] / 1e6:,.0f} MB/s", found, remedy),
    ]


def _same(check: str, ranks: Sequence[Facts]) -> Row:
    values: list[tuple[str, Mapping[str, Input]]] = [
        (one.host, {name: Input(value) for name, value in one.same.get(check, {}).items()}) for one in ranks
    ]
    differing = differences(values)
    shown = differing or [f"{name} {value}" for name, value in values[0][1].items()]
    return Row(check, "the same on all ranks", first_few(shown), _REMEDIES[check] if differing else "")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
