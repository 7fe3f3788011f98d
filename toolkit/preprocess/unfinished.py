"""A corpus in the making: which of its groups are written, by whom, and how many rows they have.

Any number of processes write one, on any machines that share its folder. All that they know of each other stands there:
ledgers say what is done, and locks, which the system frees when a process ends, who is at what. Groups are taken, and
merged, under the lock of the folder.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from tokenization import Tokenizer
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write, hash_file
from toolkit.core.locks import holder_of, is_held, try_lock
from toolkit.core.text import counted
from toolkit.data import DROPPED_FILE
from toolkit.preprocess.judging import remedy
from toolkit.preprocess.screening.documents import Screening
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.sources import Source, no_documents_error
from toolkit.preprocess.text_losses import look_at_sample
from toolkit.preprocess.writer.folder import locked_output, remove_rest
from toolkit.preprocess.writer.groups import (
    GROUPS_FOLDER,
    SourceGroup,
    group_folder,
    group_ledgers,
    groups_of,
    ledger_files,
    merge_groups,
    resume_group,
)
from toolkit.preprocess.writer.ledger import Ledger, Tally, begin_ledger, read_ledger

_SECONDS_FOR_ANOTHER = 86_400.0
"""Time that another process may take to begin or to finish a large corpus, or to decide on its near-duplicates."""


class UnfinishedCorpus:
    """The corpus of these sources in the folder `output`, as its ledgers describe it.

    `key` is all that its shards depend on but the backend: `why_reference` says why that is the tokenizer's own, or is
    empty. `tally` counts the groups that are written and have none before them that is not. Where documents are left
    out, the texts of all groups are read once, by `screening`, before the first one is written.
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
        self.written, self.tally = dict[int, Ledger](), Tally()
        self._num_counted = self._num_rows = self._num_bad = 0

    def locked(self) -> AbstractContextManager[None]:
        """The lock of the folder, which nobody holds for long."""
        return locked_output(self.output, timeout=_SECONDS_FOR_ANOTHER)

    @property
    def num_bytes(self) -> int:
        """Size of the sources that are read; of all of them twice, where documents are left out."""
        screened = () if self.screening is None else {group.number for group in self.groups} - self._unscreened()
        return sum(self.groups[number].num_bytes for numbers in (self.written, screened) for number in numbers)

    def look(self) -> None:
        """Find out which groups are written.

        Raises UserError where too many of the rows are bad, up to the end of one, in the order of the sources.
        """
        for number, ledger in group_ledgers(self.output, known=self.written).items():
            is_current = ledger.why_reference == self.why_reference and ledger.key == self._group_key(number)
            if ledger.is_whole and is_current:
                self.written[number] = ledger
        while not self._is_full and self._num_counted in self.written:
            tally = self.written[self._num_counted].tally
            for name, account in tally.sources.items():
                self.tally.sources[name] = account
                self._num_rows, self._num_bad = self._num_rows + account.rows, self._num_bad + account.num_bad
                self._check_bad_rows()
            self.tally.add(tally)
            self._num_counted += 1

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
        """Groups of which something is left to read or write, in order; none once the corpus has the shards of all."""
        ledger = read_ledger(self.output)
        if ledger is not None and ledger.key != self.key:
            raise UserError(f"Another process has started over in {self.output}. Name another folder.")
        if ledger is None or ledger.is_whole:
            return []
        if ledger.why_reference != self.why_reference:
            self.why_reference = ledger.why_reference
            self._forget()
        if unscreened := self._unscreened():
            return [group for group in self.groups if group.number in unscreened]
        self.look()
        return [] if self._is_full else [group for group in self.groups if group.number not in self.written]

    def has_free(self) -> bool:
        """True where some group is missing that nobody writes and that has not failed."""
        return not all(is_held(self._lock_file(group)) for group in self._untried())

    @contextmanager
    def claim(self) -> Iterator[tuple[SourceGroup, Ledger | None] | None]:
        """Take a free group for the time of the block; None without any.

        It comes with what is written of it; with None, its texts are to be read for what is left out.
        """
        with ExitStack() as stack:
            with self.locked():
                claimed = self._claim(stack)
            yield claimed

    def claim_rest(self) -> FileLock | None:
        """A lock for the one command that stays until others have written the rest; None where another one does."""
        with self.locked():
            return try_lock(self.output / GROUPS_FOLDER / "rest.lock") if self.missing() else None

    def _claim(self, stack: ExitStack) -> tuple[SourceGroup, Ledger | None] | None:
        if self.screening is not None and self._untried() and not self._unscreened() and not self._is_decided:
            folders, names = [self.screened(group) for group in self.groups], [group.recorded for group in self.groups]
            self.screening.decide([*zip(folders, names, strict=True)], self.output / GROUPS_FOLDER)
        for group in self._untried():
            if (lock := try_lock(self._lock_file(group))) is not None:
                stack.callback(lock.release)
                if self._unscreened():
                    return group, None
                folder, key = group_folder(self.output, group.number), self._group_key(group.number)
                return group, resume_group(folder, key, why_reference=self.why_reference)
            if self.settings.is_limited:
                raise UserError(
                    f"Another process is writing a corpus into {self.output}, and with a limit only one can. Wait for "
                    f"it, or name another folder.{holder_of(self._lock_file(group))}"
                )
        return None

    def _untried(self) -> list[SourceGroup]:
        failed = self.failures()
        if failed and self.settings.is_limited:
            return []  # What a later group may hold depends on it.
        return [group for group in self.missing() if group.number not in failed]

    def screened(self, group: SourceGroup) -> Path:
        """Folder of what is found out about a group's texts before it is written."""
        return group_folder(self.output, group.number).with_suffix(".screened")

    def is_screening(self) -> bool:
        """Tell whether others read texts before any group can be written."""
        return bool(self.missing()) and bool(self._unscreened()) and not self.failures()

    @property
    def _is_decided(self) -> bool:
        return (self.output / GROUPS_FOLDER / DROPPED_FILE).exists()

    def _unscreened(self) -> set[int]:
        """Groups whose texts are to be read before any can be written."""
        if self.screening is None or self._is_decided:
            return set()
        # The folder is listed once: with thousands of groups, looking for each would keep shared storage busy.
        folder = self.output / GROUPS_FOLDER
        names = os.listdir(folder) if folder.exists() else []
        ends = (name.partition(".screened") for name in names if name.endswith(".screened"))
        return {group.number for group in self.groups} - {int(number) for number, _, _ in ends}

    def _group_key(self, number: int) -> dict[str, str]:
        """Everything that the shards of a group depend on and those of another one do not."""
        if self.screening is None:
            return {}
        dropped = self.screened(self.groups[number]) / "dropped"
        return {"dropped": hash_file(dropped)[:16] if dropped.exists() else "undecided"}

    def rest_of_limits(self) -> PreprocessSettings:
        """The settings, with the limits that are left for the first of the missing groups."""
        done = {"limit_documents": self.tally.both.documents, "limit_tokens": self.tally.both.tokens}
        limits = {name: getattr(self.settings, name) for name in done}
        return self.settings.model_copy(update={name: limits[name] and limits[name] - done[name] for name in done})

    @property
    def _is_full(self) -> bool:
        left = self.rest_of_limits()
        return any(limit is not None and limit <= 0 for limit in (left.limit_documents, left.limit_tokens))

    def start_over(self, why_reference: str) -> None:
        """Decide on the tokenizer's own backend: what the fast one made, which compares samples, counts as missing."""
        with self.locked():
            ledger = read_ledger(self.output)
            if ledger is None or ledger.why_reference:
                return
            begin_ledger(self.output, self.key, why_reference=why_reference)
            made = sum(len(group.shards) for group in group_ledgers(self.output).values())
        console().print(f"Starting over, {counted(made, 'finished shard')} removed: {why_reference}.")

    def fail(self, group: SourceGroup, message: str) -> None:
        """Note why a group cannot be written; nobody tries it again until another command begins."""
        atomic_write(group_folder(self.output, group.number).with_suffix(".error"), message)

    def failures(self) -> dict[int, str]:
        """Why groups could not be written, by number, in order."""
        files = sorted((self.output / GROUPS_FOLDER).glob("*.error"))
        return {int(file.stem): file.read_text(encoding="utf-8") for file in files}

    def forget_failures(self) -> None:
        """Have groups that failed tried again, unless others are at work; the folder is locked."""
        if not any(map(is_held, (self.output / GROUPS_FOLDER).glob("*.lock"))):
            for file in (self.output / GROUPS_FOLDER).glob("*.error"):
                console().print(f"Trying again: {file.read_text(encoding='utf-8')}")
                # Its name stays known, since its source may be mended although this command ends before it tries.
                file.rename(file.with_suffix(".old-error"))

    def merge(self, tokenizer: Tokenizer) -> Ledger | None:
        """Make the shards of all groups the corpus's own; the folder is locked. None where that is finished already."""
        ledger = read_ledger(self.output)
        # What is missing now has been started over since it was looked at.
        if ledger is None or self.missing():
            return None
        if not ledger.is_whole:
            ledger = self._merge(ledger, tokenizer)
        # Without --near-duplicates and --without, the list is that of a corpus that was here before.
        listed = set[Path]() if self.screening is None else {self.output / DROPPED_FILE}
        remove_rest(self.output, keep=ledger_files(self.output, ledger) | listed)
        return ledger

    def _merge(self, ledger: Ledger, tokenizer: Tokenizer) -> Ledger:
        documents = self.tally.both.documents
        if not documents:
            raise no_documents_error(self.tally.skipped)
        if not self.tally.kept.documents:
            raise UserError(
                f"all {documents:,} documents are held out by --holdout {self.settings.holdout}; none is left for the "
                "corpus. Hold out less, or give more text."
            )
        groups = {number: self.written[number] for number in range(self._num_counted)}
        # Kept with the ledger, since the groups are removed before it is.
        tally = replace(self.tally, text=look_at_sample(self.output / GROUPS_FOLDER, tokenizer))
        return merge_groups(self.output, ledger, groups, tally)

    def _lock_file(self, group: SourceGroup) -> Path:
        return group_folder(self.output, group.number).with_suffix(".lock")
