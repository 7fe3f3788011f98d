"""A corpus in the making: which of its groups are written, what they contain, and what is left.

Any number of processes write it, on any machines that share its folder. All they know of each other is in there: the
folders of the written groups, which are merged under the folder's lock.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import hash_file
from toolkit.core.text import counted
from toolkit.data import DROPPED_FILE
from toolkit.preprocess.accounts import Tally
from toolkit.preprocess.screening.documents import Screening
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.source_checks import remedy
from toolkit.preprocess.sources import Source, no_documents_error
from toolkit.preprocess.writer.begun import note_begun, read_begun
from toolkit.preprocess.writer.folder import SHARDS, locked_output, remove_rest
from toolkit.preprocess.writer.groups import (
    UNFINISHED_FOLDER,
    SourceGroup,
    WrittenGroup,
    group_folder,
    groups_of,
    is_unfinished,
    written_groups,
)

_SECONDS_FOR_ANOTHER = 86_400.0
"""Seconds that another process may take to start or finish a large corpus, or to decide on its near-duplicates."""


class UnfinishedCorpus:
    """The corpus of these sources in the folder `output`, in that folder's current state.

    `key` is everything its shards depend on except the backend; `why_reference` says why that is the tokenizer's own,
    or is empty. `tally` counts the written groups before the first missing one. If documents are to be left out,
    `screening` reads the texts of all groups once before the first group is written.
    """

    def __init__(
        self,
        output: Path,
        files: Sequence[Source],
        key: Mapping[str, Any],
        settings: PreprocessSettings,
        screening: Screening | None,
    ) -> None:
        self.output, self.key, self.settings = output, key, settings
        self.files = [file for file in files if not file.is_excluded]
        self.groups, self.why_reference, self.screening = groups_of(files), "", screening
        self._forget()

    def _forget(self) -> None:
        self.written, self.tally = dict[int, WrittenGroup](), Tally()
        self._num_counted = self._num_rows = self._num_bad = 0

    def locked(self) -> AbstractContextManager[None]:
        """The folder's lock, to be held briefly."""
        return locked_output(self.output, timeout=_SECONDS_FOR_ANOTHER)

    @property
    def num_bytes(self) -> int:
        """Bytes of sources read so far; each source is read twice if documents are left out."""
        screened = () if self.screening is None else {group.number for group in self.groups} - self.unread()
        return sum(self.groups[number].num_bytes for numbers in (self.written, screened) for number in numbers)

    def look(self) -> None:
        """Update which groups are written.

        Raises UserError if too many rows are bad up to the end of any source, in the order of the sources.
        """
        for number, written in written_groups(self.output, known=self.written).items():
            if written.key == self.group_key(number):
                self.written[number] = written
        while not self._is_full and self._num_counted in self.written:
            total, more = self.tally, self.written[self._num_counted].tally
            for name, account in more.sources.items():
                total.sources[name] = account
                self._num_rows, self._num_bad = self._num_rows + account.rows, self._num_bad + account.num_bad
                self._check_bad_rows()
            total.kept, total.held_out = total.kept.plus(more.kept), total.held_out.plus(more.held_out)
            self._num_counted += 1

    @property
    def counted(self) -> dict[int, WrittenGroup]:
        """The groups that `tally` counts."""
        return {number: self.written[number] for number in range(self._num_counted)}

    def _check_bad_rows(self) -> None:
        rows, bad, most = self._num_rows, self._num_bad, self.settings.max_bad_fraction
        if bad > most * rows:
            sources = "\n  ".join(self.tally.bad_sources())
            raise UserError(
                f"{bad:,} of {counted(rows, 'row')} read so far ({bad / rows:.1%}) cannot be used, more than "
                f"--max-bad-fraction {most:g} allows:\n  {sources}\n"
                f"{remedy(self.tally.skipped)} Or leave some out (--exclude NAME), or allow more."
            )

    def missing(self) -> list[SourceGroup]:
        """Groups that are not written, in order; empty once the corpus is finished or a limit is reached."""
        begun = read_begun(self.output)
        if begun is None:
            return []
        if begun.key != self.key:
            raise UserError(f"Another process has started over in {self.output}. Name another folder.")
        if begun.why_reference != self.why_reference:
            self.why_reference = begun.why_reference
            self._forget()
        self.look()
        return [] if self._is_full else [group for group in self.groups if group.number not in self.written]

    @property
    def is_decided(self) -> bool:
        """True if it is decided which documents are left out."""
        if self.screening is None or not is_unfinished(self.output):
            return True
        return (self.output / UNFINISHED_FOLDER / DROPPED_FILE).exists()

    def decide(self) -> None:
        """Decide which documents are left out, once all groups are read."""
        assert self.screening is not None
        folders, names = [self.screened(group) for group in self.groups], [group.recorded for group in self.groups]
        self.screening.decide([*zip(folders, names, strict=True)], self.output / UNFINISHED_FOLDER)

    def screened(self, group: SourceGroup) -> Path:
        """Folder for the results of screening a group's texts before it is written."""
        return group_folder(self.output, group.number).with_suffix(".screened")

    def unread(self) -> set[int]:
        """Numbers of the groups whose texts must still be screened before any group can be written."""
        if self.is_decided:
            return set()
        # The folder is listed once: with thousands of groups, one lookup for each would burden shared storage.
        names = [name.partition(".screened") for name in os.listdir(self.output / UNFINISHED_FOLDER)]
        read = {int(number) for number, end, rest in names if end and not rest}
        return {group.number for group in self.groups} - read

    def group_key(self, number: int) -> dict[str, Any]:
        """What the shards of a group depend on besides the key of the corpus."""
        key = {"why_reference": self.why_reference}
        if self.screening is not None:
            dropped = self.screened(self.groups[number]) / "dropped"
            key["dropped"] = hash_file(dropped)[:16] if dropped.exists() else "undecided"
        return key

    def rest_of_limits(self) -> PreprocessSettings:
        """The settings, with the limits that remain for the first missing group."""
        done = {"limit_documents": self.tally.both.documents, "limit_tokens": self.tally.both.tokens}
        limits = {name: getattr(self.settings, name) for name in done}
        return self.settings.model_copy(update={name: limits[name] and limits[name] - done[name] for name in done})

    @property
    def _is_full(self) -> bool:
        left = self.rest_of_limits()
        return any(limit is not None and limit <= 0 for limit in (left.limit_documents, left.limit_tokens))

    def start_over(self, why_reference: str) -> None:
        """Switch to the tokenizer's own backend; groups by the fast one, checked only on samples, count as missing."""
        with self.locked():
            begun = read_begun(self.output)
            if begun is None or begun.why_reference:
                return
            note_begun(self.output, begun.model_copy(update={"why_reference": why_reference}))
            made = sum(group.num_shards for group in written_groups(self.output).values())
        console().print(f"Starting over, {counted(made, 'finished shard')} removed: {why_reference}.")

    def begin_merge(self) -> bool:
        """Begin to merge the shards of all groups; the folder is locked. False if another command has done it.

        Raises UserError if there would be no document.
        """
        begun = read_begun(self.output)
        # If a group is missing now, the corpus was started over since the last look.
        if begun is None or self.missing():
            return False
        if begun.is_merging:
            remove_rest(self.output, keep=SHARDS)
            return True
        documents = self.tally.both.documents
        if not documents:
            raise no_documents_error(self.tally.skipped)
        if not self.tally.kept.documents:
            raise UserError(
                f"all {documents:,} documents are held out by --holdout {self.settings.holdout}; none is left for the "
                "corpus. Hold out less, or give more text."
            )
        remove_rest(self.output)
        note_begun(self.output, begun.model_copy(update={"is_merging": True}))
        return True
