"""Choice of a worker's next item, and the loop that keeps all workers busy until every item is done or has failed.

An item is run once those that it needs have finished. A worker keeps what it has loaded for the group of its last item,
so it gets their next item as long as there is one. A lost worker's item is started again, by a fresh process; one that
loses its worker twice has failed. What fails stops only the items that need it.

Several commands may share the items. A command claims an item before a worker gets it. What another one has claimed is
asked for again every few seconds, until it has ended or, where the other command was killed, is free.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from toolkit.execution.work import NOBODY, Event, Executor, Failed, Finished, Key, Lost, Observer, Work, WorkShare

_MOST_LOSSES = 2
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_CLAIMS = 5.0


def run_work(items: Sequence[Work], executor: Executor, *, share: WorkShare, observer: Observer) -> dict[Key, str]:
    """Run items, in the order of preference, and return the messages of those that failed."""
    needs = {item.key: item.needs for item in items}
    assert len(needs) == len(items), "two items have one key"
    # Items that wait for one another would never begin.
    TopologicalSorter(needs).prepare()
    loop = _Loop(items, share)
    while loop.pending or loop.running:
        for worker, item in loop.assign(executor.workers):
            executor.start(worker, item)
            observer.on_start(worker, item.key)
        loop.tell(observer)
        observer.on_look()
        for event in executor.wait(_SECONDS_BETWEEN_LOOKS) if loop.pending or loop.running else ():
            settled = loop.settle(event)
            # Only then another command may have the claim: it asks for the failure first, which the observer writes.
            observer.on_event(settled)
            loop.release(settled.worker)
        loop.tell(observer)
    observer.on_look()
    return loop.failed


class _Loop:
    """Items that wait, run and have failed, and the claim that each worker is at."""

    def __init__(self, items: Sequence[Work], share: WorkShare) -> None:
        self.pending, self.running, self.failed = list(items), dict[int, Work](), dict[Key, str]()
        self._unfinished, self._unrun = {item.key for item in items}, list[Event]()
        self._groups, self._losses = dict[int, Key](), Counter[Key]()
        self._share, self._claims, self._refused = share, dict[int, str](), dict[str, float]()

    def assign(self, workers: Sequence[int]) -> Iterator[tuple[int, Work]]:
        """Idle workers with their next items."""
        for lost in self._claims.keys() - {*workers, *self.running}:
            self._share.release(self._claims.pop(lost))
        for worker in workers:
            if worker not in self.running and (item := self._next(worker)) is not None:
                self.pending.remove(item)
                self.running[worker], self._groups[worker] = item, item.group
                yield worker, item

    def settle(self, event: Event) -> Event:
        """The event; an item that has lost its last worker has failed."""
        item = self.running.pop(event.worker)
        if isinstance(event, Lost):
            self._losses[event.key] += 1
            # What it had loaded is gone with it.
            del self._groups[event.worker]
            if self._losses[event.key] < _MOST_LOSSES:
                self.pending.insert(0, item)
            else:
                message = f"its worker ended {_MOST_LOSSES} times, last time by {event.reason}"
                event = Failed(event.worker, event.key, message)
        self._end(event)
        return event

    def release(self, worker: int) -> None:
        """Give up a worker's claim, if no item of it can be run."""
        if not self._ready(self._claims[worker]):
            self._share.release(self._claims.pop(worker))

    def tell(self, observer: Observer) -> None:
        """Events of items that no worker of this command ran."""
        while self._unrun:
            observer.on_event(self._unrun.pop())

    def _end(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._unfinished.discard(event.key)
        elif isinstance(event, Failed):
            self.failed[event.key] = event.message
            for item in [item for item in self.pending if event.key in item.needs]:
                if item in self.pending:
                    self._drop(Failed(NOBODY, item.key, f"it needs {event.key}, which has failed"))

    def _drop(self, event: Event) -> None:
        self.pending = [item for item in self.pending if item.key != event.key]
        self._unrun.append(event)
        self._end(event)

    def _next(self, worker: int) -> Work | None:
        """An item of the worker's claim, or of another one that can be claimed; None without any."""
        while worker not in self._claims:
            free = self._free()
            if not free:
                return None
            claim = _claim(next_item(free, self._groups, worker))
            if not self._share.claim(claim):
                self._refused[claim] = time.monotonic()
                continue
            for item in [item for item in self.pending if _claim(item) == claim]:
                if item in self.pending and (event := self._share.ended(item.key)) is not None:
                    self._drop(event)
            if self._ready(claim):
                self._claims[worker] = claim
            else:
                self._share.release(claim)
        return next(iter(self._ready(self._claims[worker])), None)

    def _ready(self, claim: str | None = None) -> list[Work]:
        """Items, of a claim or of all, that wait for nothing."""
        return [
            item for item in self.pending if claim in (None, _claim(item)) and self._unfinished.isdisjoint(item.needs)
        ]

    def _free(self) -> list[Work]:
        """Items that wait for nothing and are of no claim that a worker, or a moment ago another command, has."""
        recent = time.monotonic() - _SECONDS_BETWEEN_CLAIMS
        taken = {*self._claims.values(), *(name for name, when in self._refused.items() if when > recent)}
        return [item for item in self._ready() if _claim(item) not in taken]


def _claim(item: Work) -> str:
    return item.claim or str(item.key)


def next_item(pending: Sequence[Work], groups: Mapping[int, Key], worker: int) -> Work:
    """An item of the worker's own group if any is left, else of one that no worker has, else of the longest queue."""
    queues = Counter(item.group for item in pending)
    if worker in groups and groups[worker] in queues:
        chosen = groups[worker]
    else:
        others = set(groups.values())
        free = [group for group in queues if group not in others]
        chosen = free[0] if free else max(queues, key=lambda group: queues[group])
    return next(item for item in pending if item.group == chosen)
