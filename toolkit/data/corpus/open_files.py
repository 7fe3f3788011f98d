"""One limit on the mapped files of this process, whatever it reads: each mapping holds a file descriptor."""

import resource
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

_Opened = TypeVar("_Opened")

# What there may be at most, where the system's hard limit allows it: far below its limit on mappings (65,530).
_MOST_DESCRIPTORS = 1 << 14
# A shard maps two files, and a process needs descriptors for much else: sockets, devices, pipes.
_DESCRIPTORS_FOR_EACH = 4


def kept_open(open_one: Callable[[int], _Opened], number: int) -> _Opened:
    """`open_one(number)`, opened when it is first asked for; the last ones used stay open, over all callers."""
    return cast(_Opened, _opened()(open_one, number))


@cache
def _opened() -> Callable[[Callable[[int], Any], int], Any]:
    @lru_cache(maxsize=_descriptor_limit() // _DESCRIPTORS_FOR_EACH)
    def opened(open_one: Callable[[int], Any], number: int) -> Any:
        return open_one(number)

    return opened


def _descriptor_limit() -> int:
    """The limit on open files of this process, raised from its soft to its hard value first."""
    soft, hard = (_MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    wanted = min(hard, _MOST_DESCRIPTORS)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, _limits()[1]))
    return max(soft, wanted)


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
