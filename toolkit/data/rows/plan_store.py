"""Storage of packing plans: next to their shard, or in a cache folder if the corpus cannot be written.

A plan is built once, by the first process that needs it, under a file lock; it is renamed into place, so a reader
sees a complete plan or none. A damaged one is rebuilt, with identical bytes.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolkit.core.console import progress
from toolkit.core.errors import CorpusError
from toolkit.core.files import cache_folder, hash_file
from toolkit.core.locks import locked_file
from toolkit.data.corpus.corpus import Corpus
from toolkit.data.corpus.files import kept_open, open_folder, size_if_there
from toolkit.data.corpus.shard_index import Lengths
from toolkit.data.rows.packing import PackedRows
from toolkit.data.rows.plan import PlanKey, PlanSizes, is_intact, map_plan, plan_bytes, read_sizes, write_plan
from toolkit.data.rows.plan_summary import PlanTable, SummaryKey, read_summary, write_summary

# With fewer shards, reading the headers of all plans is as fast.
_FEWEST_SHARDS_SUMMARISED = 100
# Fewer are packed before anyone misses a progress bar.
_FEWEST_SHARDS_SHOWN = 10


class PlanStore:
    """The packing plans of a corpus; missing ones are built when the store is opened.

    Pieces shorter than `min_length` are dropped. Plans that cannot be next to their shards are below `$XDG_CACHE_HOME`.
    """

    def __init__(self, corpus: Corpus, *, sequence_length: int, min_length: int) -> None:
        self._corpus, self._sequence_length, self._min_length = corpus, sequence_length, min_length
        self._cache_folder = cache_folder()
        self._summary_key = SummaryKey(corpus.manifest.manifest_sha256, len(corpus.shards), sequence_length, min_length)
        self._intact: dict[int, Path] = {}  # plans are verified once, not each time they are mapped again
        self.table = self._summarised() or self._gathered()

    def plan(self, number: int) -> PackedRows:
        """The plan of shard `number`; checked on first use, and rebuilt if it is damaged."""
        return kept_open(self._map, number)

    def _summarised(self) -> PlanTable | None:
        """Sizes from a summary, if there is one, after building the missing plans.

        If sizes are trusted, a missing plan is built on first use.
        """
        table = next((found for path in self._summaries() if (found := read_summary(path, self._summary_key))), None)
        if table is None:
            return None
        is_trusted = self._corpus.sizes == "trust"
        missing = [] if is_trusted else self._missing(plan_bytes(table.num_rows, table.num_pieces))
        made = self._make_all(missing)
        return table if made == [table.sizes(number) for number in missing] else None

    def _missing(self, plan_sizes: npt.NDArray[np.int64]) -> list[int]:
        """The shards without a plan of that size, neither next to them nor in the cache."""
        missing, names = [], self._corpus.manifest.table.names
        with open_folder(self._corpus.path) as descriptor:
            for number, (name, num_bytes) in enumerate(zip(names, plan_sizes.tolist(), strict=True)):
                plan = self._key(number).file_name(name)
                if size_if_there(plan, folder=descriptor) == num_bytes:
                    continue
                if size_if_there(self._cache_folder / os.path.basename(plan)) != num_bytes:
                    missing.append(number)
        return missing

    def _gathered(self) -> PlanTable:
        """Sizes from the plans themselves; writes a summary if that will save time."""
        with open_folder(self._corpus.path) as descriptor:
            found = [self._find(number, descriptor) for number in range(len(self._corpus.shards))]
        made = iter(self._make_all([number for number, sizes in enumerate(found) if sizes is None]))
        table = PlanTable.of([sizes or next(made) for sizes in found])
        for path in self._summaries() if len(found) >= _FEWEST_SHARDS_SUMMARISED else ():
            # Only a copy: a run continues without it if it cannot be written.
            with suppress(OSError), locked_file(path.with_name(".plans.lock")):
                write_summary(path, self._summary_key, table)
                break
        return table

    def _summaries(self) -> Iterator[Path]:
        yield self._corpus.path / self._summary_key.file_name
        yield self._cache_folder / self._summary_key.file_name

    def _find(self, number: int, descriptor: int) -> PlanSizes | None:
        key = self._key(number)
        plan = key.file_name(self._corpus.manifest.table.names[number])
        return read_sizes(plan, key, folder=descriptor) or read_sizes(self._cache_folder / os.path.basename(plan), key)

    def _map(self, number: int) -> PackedRows:
        path = self._intact.get(number) or self._find_intact(number)
        if path is None:
            self._make(number)
            path = self._find_intact(number)
        if path is None:
            raise CorpusError(
                f"the packing plan of {self._prefix(number)} was corrupted right after it was written: it "
                "reads back differently. Check the disk."
            )
        self._intact[number] = path
        sizes = self.table.sizes(number)
        if read_sizes(path, self._key(number)) != sizes:
            raise CorpusError(
                f"{path} has other numbers of rows than the summary of all plans, {self._summary_key.file_name}. "
                "Delete both; they are rebuilt."
            )
        return map_plan(path, sizes)

    def _find_intact(self, number: int) -> Path | None:
        return next((path for path in self._places(number) if is_intact(path, self._key(number))), None)

    def _make_all(self, numbers: Sequence[int]) -> list[PlanSizes]:
        if len(numbers) < _FEWEST_SHARDS_SHOWN:
            return [self._make(number) for number in numbers]
        made = []
        # Name the machine: if the corpus cannot be written, each machine of a run has plans of its own.
        label = f"Packing rows of {self._corpus.place} on {socket.gethostname()}"
        with progress(label, total=len(numbers), unit="shards") as shown:
            for number in numbers:
                made.append(self._make(number))
                shown.update(len(made))
        return made

    def _make(self, number: int) -> PlanSizes:
        key, failures = self._key(number), []
        for path in self._places(number):
            try:
                with locked_file(path.with_name(".plans.lock")):
                    # Another process may have built it while this one waited.
                    found = read_sizes(path, key) if is_intact(path, key) else None
                    return found or write_plan(path, key, document_lengths=self._checked_lengths(number))
            except OSError as error:
                failures.append(f"{path.parent}: {error.strerror or error}")
        raise CorpusError(
            f"the packing plan of {self._prefix(number)} cannot be written ({'; '.join(failures)}). "
            "Make one of these folders writable, or set XDG_CACHE_HOME to one that is."
        )

    def _checked_lengths(self, number: int) -> Lengths:
        index = self._corpus.shards.index_of(number)
        if hash_file(index.path) != self._key(number).sha256_idx:
            raise CorpusError(
                f"{index.path} is damaged: its hash is not the one in corpus.json. Copy the corpus again."
            )
        index.check()
        return index.lengths

    def _key(self, number: int) -> PlanKey:
        return PlanKey(self._corpus.manifest.table.sha256_idx(number), self._sequence_length, self._min_length)

    def _prefix(self, number: int) -> Path:
        return self._corpus.path / self._corpus.manifest.table.names[number]

    def _places(self, number: int) -> Iterator[Path]:
        prefix = self._prefix(number)
        name = self._key(number).file_name(prefix.name)
        yield prefix.with_name(name)
        yield self._cache_folder / name
