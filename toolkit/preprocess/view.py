"""A corpus in the making, as its folder shows it: groups that are written, begun and failed, and how fast it goes."""

from collections.abc import Iterator
from pathlib import Path

from toolkit.core.errors import CorpusError
from toolkit.core.text import counted
from toolkit.preprocess.tasks import item_key
from toolkit.preprocess.writer.begun import Begun, read_begun
from toolkit.preprocess.writer.groups import EXCLUDED, UNFINISHED_FOLDER, group_slices, written_groups
from toolkit.work.claims import Claims, Item, Job
from toolkit.work.commands import commands_at, work_folder
from toolkit.work.show import Line, Pace

_MB = 1e6


class CorpusView:
    """The groups of a corpus that other commands make; CorpusError where what says how it was begun cannot be read."""

    def __init__(self, folder: Path) -> None:
        begun = read_begun(folder)
        if begun is None:
            raise CorpusError(f"{folder / UNFINISHED_FOLDER} is damaged. Start the same `toolkit preprocess` again.")
        self._folder, self._work = folder, work_folder(folder)
        self._megabytes = _group_sizes(begun)
        numbers = range(len(self._megabytes))
        keys = [item_key(step, number, begun.why_reference) for step in ("read", "write") for number in numbers]
        self._claims = Claims(Job(self._work, [Item(key) for key in keys]))
        self._written, self._told, self._is_finished = set[int](), set[str](), False
        self.look()
        self._pace = Pace(len(self._written))

    def look(self) -> None:
        """Read what has been begun, has been written and has failed since the last look."""
        self._is_finished = read_begun(self._folder) is None
        self._written |= written_groups(self._folder, known=self._written).keys()
        self._claims.look()

    def is_over(self) -> bool:
        """True where the corpus is finished, or nobody makes it."""
        return self._is_finished or not commands_at(self._work)

    def news(self) -> Iterator[Line]:
        """What failed, and how far the corpus is."""
        failures = [f"{key} failed: {message}" for key, message in self._claims.failed.items()]
        for text in (*failures, self.picture()):
            if text not in self._told:
                self._told.add(text)
                yield Line(text, is_news=text in failures)

    def picture(self) -> str:
        """'3 of 8 source groups written (3,221 of 8,590 MB), 2 at work, 1 failed, 400 groups/h, 0:00:45 left'."""
        if self._is_finished:
            return f"the corpus in {self._folder} is finished"
        total, claims, num_written = len(self._megabytes), self._claims, len(self._written)
        megabytes = sum(self._megabytes[number] for number in self._written)
        parts = [
            f"{num_written:,} of {counted(total, 'source group')} written "
            f"({megabytes:,.0f} of {sum(self._megabytes):,.0f} MB)",
            f"{len(claims.running):,} at work",
            f"{len(claims.failed):,} failed" * bool(claims.failed),
            self._pace.text(num_written, total - num_written, "groups"),
        ]
        rest = "; nobody is at it, and the same `toolkit preprocess` goes on" * self.is_over()
        return ", ".join(filter(None, parts)) + rest


def _group_sizes(begun: Begun) -> list[float]:
    """MB of the sources of each group."""
    sources = begun.key["sources"]
    slices = group_slices([size for _, size, _ in sources])
    return [sum(size / _MB for _, size, version in sources[its] if version != EXCLUDED) for its in slices]
