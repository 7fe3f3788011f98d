"""Small exchanges between ranks, and leaving together."""

import time
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from toolkit.core.errors import CheckpointError
from toolkit.testing.distributed import run_distributed

_TIMEOUT = timedelta(seconds=1.5)


@dataclass(frozen=True)
class Exchanges:
    """Every exchange once."""

    def __call__(self) -> dict[str, object]:
        from toolkit.engine.ranks import join_ranks

        ranks = join_ranks()
        return {
            "counts": ranks.sum_counts(ranks.rank + 1, 10),
            "flags": ranks.sum_with_flags([torch.tensor(0.5 + ranks.rank)], [ranks.rank == 1, False, True]),
            "numbers": _numbers(ranks),
            "objects": ranks.gather(f"rank {ranks.rank}"),
            "broadcast": ranks.broadcast("from 0" if ranks.rank == 0 else None),
        }


def _numbers(ranks):
    with ranks.gathering() as gather:
        return gather(np.full(3, ranks.rank)).tolist()


@dataclass(frozen=True)
class WorksAlone:
    """Rank 0, or rank 1, works for longer than collectives may take; returns what each rank then has from the other."""

    def __call__(self) -> list[list[str]]:
        from toolkit.engine.ranks import join_ranks

        ranks, received = join_ranks(), []
        # Of every other group that is made without one of its own.
        _set_pg_timeout(_TIMEOUT, dist.group.WORLD)
        for alone in range(ranks.world_size):
            with ranks.together():
                if ranks.rank == alone:
                    time.sleep(1.2 * _TIMEOUT.total_seconds())
            received.append(ranks.gather(f"rank {ranks.rank}"))
        return received


@dataclass(frozen=True)
class HasPatience:
    """Seconds that a collective of a further group may take."""

    def __call__(self) -> float:
        return dist.new_group()._get_backend(torch.device("cpu")).options._timeout.total_seconds()


@dataclass(frozen=True)
class FailsOnOneRank:
    """Rank 1 fails; all have to raise its error."""

    is_ours: bool

    def __call__(self) -> tuple[str, str, bool]:
        from toolkit.engine.ranks import join_ranks

        ranks = join_ranks()
        try:
            with ranks.together():
                if ranks.rank == 1:
                    raise CheckpointError("disk full") if self.is_ours else ZeroDivisionError("oops")
        except Exception as error:
            return type(error).__name__, str(error), error.is_agreed
        return "", "", False


def test_exchanges_and_shared_failures():
    exchanges, ours, other = run_distributed([Exchanges(), FailsOnOneRank(True), FailsOnOneRank(False)], world_size=2)
    expected = {
        "counts": (3, 20),
        "flags": ([2.0], (True, False, True)),
        "numbers": [[0] * 3, [1] * 3],
        "objects": ["rank 0", "rank 1"],
        "broadcast": "from 0",
    }
    assert exchanges == [expected, expected]
    assert ours == [("CheckpointError", "disk full", True)] * 2
    assert other == [("ToolkitError", "rank 1 failed: ZeroDivisionError: oops", True)] * 2


def test_groups_within_the_run_have_its_timeout():
    # Torch's own is half an hour.
    assert run_distributed([HasPatience()], world_size=2) == [[600.0] * 2]


def test_others_wait_for_a_rank_that_works_alone_for_longer_than_a_collective_may_take():
    (received,) = run_distributed([WorksAlone()], world_size=2)
    assert received == [[["rank 0", "rank 1"]] * 2] * 2
