"""What a command has of work that others run too, scripted."""

from collections.abc import Iterable, Mapping

from toolkit.execution.work import NOBODY, Event, Failed, Finished, Key, WorkShare


class Share(WorkShare):
    """Of items that other commands may run too.

    Args:
        taken: claims that another command has, once for each time that it is asked for.
        ended: how another command has ended an item, by its key.
    """

    def __init__(
        self, *, taken: Iterable[str] = (), ended: Mapping[Key, type[Finished | Failed]] | None = None
    ) -> None:
        self._taken, self._ended = list(taken), ended or {}
        self.claimed: list[str] = []

    def claim(self, name: str) -> bool:
        if name in self._taken:
            self._taken.remove(name)
            return False
        assert name not in self.claimed
        self.claimed.append(name)
        return True

    def release(self, name: str) -> None:
        self.claimed.remove(name)

    def ended(self, key: Key) -> Event | None:
        kind = self._ended.get(key)
        if kind is Failed:
            return Failed(NOBODY, key, "broken")
        return None if kind is None else Finished(NOBODY, key)
