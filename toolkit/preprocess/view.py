"""View of a corpus in the making, from its folder: groups written, in progress and failed, and the pace."""

from collections.abc import Iterator
from pathlib import Path

from toolkit.core.errors import CorpusError
from toolkit.core.text import counted
from toolkit.data import CORPUS_MANIFEST
from toolkit.preprocess.tasks import DECIDE, item_key
from toolkit.preprocess.writer.begun import Begun, read_begun
from toolkit.preprocess.writer.groups import BEGUN, EXCLUDED, UNFINISHED_FOLDER, group_slices, written_groups
from toolkit.work.claims import Claims, Item, Job
from toolkit.work.commands import commands_at, work_folder
from toolkit.work.show import Line, Pace

_MB = 1e6


class CorpusView:
    """Groups of a corpus that other commands make; raises CorpusError if the record of its start is damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._work = folder, work_folder(folder)
        self._begun: Begun | None = None
        self._megabytes, self._written, self._told = list[float](), set[int](), set[str]()
        self._claims, self._pace = Claims(Job(self._work, [])), Pace(0)
        self.look()
        if self._begun is None and (folder / UNFINISHED_FOLDER / BEGUN).exists():
            raise _damaged(folder)
        self._pace = Pace(len(self._written))

    def look(self) -> None:
        """Read which groups were started, written or failed since the last look."""
        begun = read_begun(self._folder)
        if begun is not None and begun != self._begun:
            self._begin(begun)
        self._begun = begun
        for number, group in written_groups(self._folder, known=self._written).items():
            # A group of another backend, or of sources that the corpus no longer has, is not part of it.
            if begun and number < len(self._megabytes) and group.key.get("why_reference") == begun.why_reference:
                self._written.add(number)
        self._claims.look()

    def _begin(self, begun: Begun) -> None:
        """Reset for a corpus whose sources or backend have changed since the last look."""
        try:
            sources = [(int(size), version) for _, size, version in begun.key["sources"]]
        except (KeyError, TypeError, ValueError):
            raise _damaged(self._folder) from None
        self._megabytes = [
            sum(size / _MB for size, version in sources[its] if version != EXCLUDED)
            for its in group_slices([size for size, _ in sources])
        ]
        numbers = range(len(self._megabytes))
        keys = [item_key(step, number, begun.why_reference) for step in ("read", "write") for number in numbers]
        self._claims, self._written = Claims(Job(self._work, [Item(key) for key in (*keys, DECIDE)])), set()

    def is_over(self) -> bool:
        """True if the corpus is finished, or no process is making it."""
        return self._begun is None or not commands_at(self._work)

    def news(self) -> Iterator[Line]:
        """Failures, and the progress of the corpus each time a group is written."""
        failures = [f"{key} failed: {message}" for key, message in self._claims.failed.items()]
        progress = [] if self.is_over() else [self._groups()]
        for text in (*failures, *progress):
            if text not in self._told:
                self._told.add(text)
                yield Line(text if text in failures else self.picture(), is_news=text in failures)

    def picture(self) -> str:
        """'3 of 8 source groups written (3,221 of 8,590 MB), 2 at work, 1 failed, 400 groups/h, 0:00:45 left'."""
        if self._begun is None:
            is_finished = (self._folder / CORPUS_MANIFEST).exists()
            return f"the corpus in {self._folder} is " + ("finished" if is_finished else "not there any more")
        rest = "; no process is running it; the same `toolkit preprocess` continues" * self.is_over()
        if self._begun.is_merging:
            return f"all {counted(len(self._megabytes), 'source group')} are written and become the corpus{rest}"
        num_written, claims = len(self._written), self._claims
        parts = [
            self._groups(),
            f"{len(claims.running):,} at work",
            f"{len(claims.failed):,} failed" * bool(claims.failed),
            self._pace.text(num_written, len(self._megabytes) - num_written, "groups") * (not self._is_limited),
        ]
        return ", ".join(filter(None, parts)) + rest

    @property
    def _is_limited(self) -> bool:
        """True if a limit ends the corpus, perhaps before the last group."""
        assert self._begun is not None
        return any(self._begun.key.get(key) for key in ("--limit-documents", "--limit-tokens"))

    def _groups(self) -> str:
        megabytes = sum(self._megabytes[number] for number in self._written)
        return (
            f"{len(self._written):,} of {'at most ' * self._is_limited}{counted(len(self._megabytes), 'source group')} "
            f"written ({megabytes:,.0f} of {sum(self._megabytes):,.0f} MB)"
        )


def _damaged(folder: Path) -> CorpusError:
    return CorpusError(
        f"{folder / UNFINISHED_FOLDER / BEGUN} is damaged, or of an earlier version. Start the same "
        "`toolkit preprocess` over with --overwrite."
    )
