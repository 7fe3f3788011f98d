"""Remaining work of a study: pieces of its runs, derived from the tree and the files on disk.

No other state is kept. A study that was killed, or that got more models, does what is missing in its folder.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from toolkit.checkpoint.manifest import read_manifest
from toolkit.checkpoint.read import Checkpoint, newest_intact, open_checkpoint
from toolkit.core.errors import CheckpointError, SettingsError, UserError
from toolkit.core.text import counted
from toolkit.engine.gpus import num_devices
from toolkit.experiments.study.declaration import Study
from toolkit.experiments.study.estimate import missed_steps
from toolkit.experiments.study.outside import OutsideRun
from toolkit.experiments.study.tree import Leaf, Tree
from toolkit.run.comparison import Course, check_same_corpora, check_same_run, parting
from toolkit.run.continuation import Continuation, hashes_of_first_weights
from toolkit.run.corpora import OpenedCorpora, open_corpora
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.divergence import divergence_of
from toolkit.run.folder import RunFolder
from toolkit.run.identity import saved_settings
from toolkit.run.load import read_resolved
from toolkit.run.settings import ForkSettings, RunSettings


class PieceKey(NamedTuple):
    """A model, and the step up to which a piece trains it."""

    name: str
    until: int

    def __str__(self) -> str:
        """'610m-clm-42k@10000', the name of jobs and logs."""
        return f"{self.name}@{self.until}"


@dataclass(frozen=True)
class RunPiece:
    """Updates of a run up to a step at which others start, or to its end."""

    name: str
    until: int
    first: int
    """Updates made before the piece, by this run or by others."""
    needs: PieceKey | None = None
    """The piece whose checkpoint it starts from, if that does not exist yet."""

    @property
    def key(self) -> PieceKey:
        """Key by which other pieces need it."""
        return PieceKey(self.name, self.until)


@dataclass(frozen=True)
class _Source:
    """Checkpoint that a run starts from."""

    path: Path
    step: int
    needs: PieceKey | None = None


class StudyPlan:
    """A study, its tree, and its state: the pieces that are left, givers first, and notes on anything unexpected.

    `opened` opens a checkpoint that a run might start from; by default it hashes all files, which takes a minute if
    they are large. Raises `SettingsError` if runs on disk were trained with other settings.
    """

    def __init__(self, study: Study, tree: Tree, *, opened: Callable[[Path], Checkpoint] = open_checkpoint) -> None:
        self.study, self.tree, self.notes, self._opened = study, tree, list[str](), opened
        self._outside = _outside(study, tree)
        self._corpora = _corpora_of({name: leaf.model.run for name, leaf in tree.leaves.items()})
        # Each place is read once for all models and all runs that they are compared with.
        self._first_weights = cache(hashes_of_first_weights)
        # Settings of the runs that have started.
        self._begun = dict[str, RunSettings]()
        self._check_runs()
        own = {
            name: found
            for name, leaf in tree.leaves.items()
            if (found := divergence_of(leaf.model.run, partial(self._hashes, name))) is not None
        }
        self.diverged = {
            name: found
            for name, leaf in tree.leaves.items()
            for other, found in own.items()
            if self.done(name) < found.step <= tree.shared_steps(leaf.model, tree.leaves[other].model)
        }
        """Models known to diverge, because they or others diverged in the same steps: that is their outcome."""
        # Givers come first, so what a model waits for is known by its turn.
        self._sources, self._first = dict[str, _Source | None](), dict[str, int]()
        for name, leaf in tree.leaves.items():
            done = self.done(name)
            source = self._sources[name] = None if done or not self.last(leaf.name) else self._source_of(leaf)
            self._first[name] = done or (source.step if source else 0)
        self.pieces = tuple(piece for leaf in tree.leaves.values() for piece in self._pieces_of(leaf))
        self._tell_missed_steps()
        self._tell_other_ranks()

    @property
    def num_steps(self) -> int:
        """Number of updates left."""
        return sum(piece.until - piece.first for piece in self.pieces)

    def folder(self, name: str) -> RunFolder:
        """Folder of a model's run."""
        return self.tree.leaves[name].model.run.folder

    def done(self, name: str) -> int:
        """Updates of a run up to its newest checkpoint; 0 if it has none."""
        return self.folder(name).newest_step()

    def whole(self, name: str) -> Path | None:
        """Checkpoint of another run that equals this run's last one; None if absent, or if the run has its own."""
        source, total = self._sources[name], self.tree.leaves[name].model.total_steps
        return source.path if source and source.needs is None and source.step == total else None

    def last(self, name: str) -> int:
        """Updates that a run can make: all, or up to the last step before its divergence that others start from."""
        leaf = self.tree.leaves[name]
        if (found := self.diverged.get(name)) is None:
            return leaf.model.total_steps
        return max((step for step in leaf.cuts if step < found.step), default=0)

    def run_file(self, name: str) -> RunSettings:
        """Settings that a run should have on disk: its own, its starting checkpoint, and the checkpoints to keep."""
        leaf, source = self.tree.leaves[name], self._sources.get(name)
        keep = tuple(sorted({*leaf.kept, *self._given(name)}))
        settings = self._begun.get(name, leaf.model.run.settings)
        if name not in self._begun and source is not None:
            fork = None
            if (last := self.whole(name)) is not None:
                # Its metrics begin where those of the run with this checkpoint do.
                fork = saved_settings(read_manifest(last)).fork
            elif source.step < leaf.model.total_steps:
                fork = ForkSettings.model_validate({"from": str(source.path), "step": source.step})
            # Else it is taken over whole once that checkpoint exists.
            settings = settings.model_copy(update={"fork": fork})
        # From the declaration, since a started run already has a place of its own.
        place = leaf.model.run.settings.checkpoint.copy_to
        copy_to = None if place is None else f"{place.rstrip('/')}/{name}"
        checkpoint = settings.checkpoint.model_copy(update={"keep_at": keep, "copy_to": copy_to})
        return settings.model_copy(update={"checkpoint": checkpoint})

    def needless(self) -> list[Path]:
        """Checkpoints that no model starts from any more, and that are neither a run's newest nor kept by the file."""
        found = []
        for leaf in self.tree.leaves.values():
            needed = {self.done(leaf.name), leaf.model.total_steps, *leaf.keep, *leaf.model.keep}
            needed |= self._given(leaf.name)
            found += [path for step, path in self.folder(leaf.name).steps() if step not in needed]
        # A run whose newest checkpoint is damaged resumes from one of these.
        whole = {folder: not newest_intact(folder)[1] for folder in {path.parent for path in found}}
        return [path for path in found if whole[path.parent]]

    def _given(self, name: str) -> set[int]:
        """Steps of a run from whose checkpoints others start, including those not made yet."""
        folder = self.folder(name).path
        return {source.step for source in self._sources.values() if source and source.path.is_relative_to(folder)}

    def _pieces_of(self, leaf: Leaf) -> Iterator[RunPiece]:
        """Remaining pieces of a run, cut where others wait for it."""
        first, source, last = self._first[leaf.name], self._sources[leaf.name], self.last(leaf.name)
        needs = source.needs if source else None
        keys = [other.needs for other in self._sources.values() if other and other.needs]
        waited = {key.until for key in keys if key.name == leaf.name and key.until <= last}
        ends = sorted({*waited, last} if first < last == leaf.model.total_steps else waited)
        for until in ends:
            yield RunPiece(leaf.name, until, first, needs)
            first, needs = until, PieceKey(leaf.name, until)

    def _source_of(self, leaf: Leaf) -> _Source | None:
        """The checkpoint that a run starts from; None for its first weights."""
        if leaf.name in self.tree.queued and self.folder(leaf.name).settings_file.is_file():
            return self._told(leaf)
        found = next(self._intact(leaf, first=max(leaf.fork, 1)), None)
        if found is not None or leaf.giver is None:
            return found
        if self._first[leaf.giver] < leaf.fork:
            return _Source(self.folder(leaf.giver).checkpoint(leaf.fork), leaf.fork, PieceKey(leaf.giver, leaf.fork))
        found = next(self._intact(leaf, first=1), None)
        first = 0 if found is None else found.step
        self.notes.append(
            f"{leaf.name}: step {leaf.fork:,} of {leaf.giver} is not kept, or damaged; from {first:,} on it trains "
            f"{counted(leaf.fork - first, 'step')} again"
        )
        return found

    def _told(self, leaf: Leaf) -> _Source | None:
        """The checkpoint that a run with a queued job starts from."""
        fork = read_resolved(self.folder(leaf.name).settings_file).settings.fork
        if fork is None:
            return None
        path = Path(fork.source)
        return _Source(path, fork.step, None if path.is_dir() else PieceKey(path.parents[1].name, fork.step))

    def _intact(self, leaf: Leaf, *, first: int) -> Iterator[_Source]:
        """Intact checkpoints of other runs from step `first` up to where this run parts from them, latest first."""
        limits = {
            self.folder(name): self.tree.parting(name, leaf.name).step for name in self.tree.leaves if name != leaf.name
        }
        for other in self._outside:
            limits[other.folder] = other.parting(leaf.model.run, partial(self._hashes, leaf.name)).step
        kept = [
            _Source(path, step)
            for folder, limit in limits.items()
            for step, path in folder.steps()
            if first <= step <= limit
        ]
        for source in sorted(kept, key=lambda source: -source.step):
            try:
                self._opened(source.path)
            except CheckpointError:
                continue
            yield source

    def _tell_missed_steps(self) -> None:
        for name, leaf in self.tree.leaves.items():
            for step, (key, *_) in missed_steps(leaf).items():
                self.notes.append(
                    f"{name}: it has no checkpoint of step {step:,}, which {key} names, and is at "
                    f"{self.done(name):,}; it is left out. To have it, remove {self.folder(name).path}"
                )

    def _tell_other_ranks(self) -> None:
        """Note runs that continue from a checkpoint of another number of ranks than they will have."""
        machine = self.study.machine
        for name in dict.fromkeys(piece.name for piece in self.pieces):
            source, own = self._sources[name], self.folder(name).checkpoint(self.done(name))
            path = own if source is None else source.path
            if (source and source.needs) or not path.is_dir():
                continue
            before, now = read_manifest(path).layout.world_size, machine.nodes * (machine.gpus or num_devices())
            if before != now:
                self.notes.append(
                    f"{name}: {path} is of {counted(before, 'rank')}, and machine.gpus and nodes make "
                    f"{counted(now, 'rank')} of it: not the same bits as trained alone"
                )

    def _hashes(self, name: str, settings: RunSettings) -> dict[str, str] | None:
        """`Hashes` of a model; None if a corpus is missing."""
        corpora, init = self._corpora[name], settings.init
        return corpora if corpora is None or init is None else corpora | self._first_weights(init.source)

    def _check_run(self, leaf: Leaf) -> None:
        if (own := leaf.model.run.folder.newest_manifest()) is None:
            return
        # The file's current settings, with what the run's start has chosen.
        settings, saved = Continuation(own).keep_choices(leaf.model.run).settings, saved_settings(own)
        hashes = self._hashes(leaf.name, settings)
        corpora = None if hashes is None else (own.corpora, hashes)
        there, here = Course.of(saved, corpora and own.corpora), Course.of(settings, hashes)
        # A finished run may have its checkpoint from a longer run, which made the same steps.
        if own.step < leaf.model.total_steps or parting(there, here).step < own.step:
            check_same_run(own.settings, settings, corpora=corpora)
        check_same_corpora(own.corpora, hashes or {})
        self._begun[leaf.name] = settings.model_copy(update={"fork": saved.fork})

    def _check_runs(self) -> None:
        mistakes = []
        for leaf in self.tree.leaves.values():
            try:
                self._check_run(leaf)
            except UserError as error:
                mistakes.append(f"{leaf.name}: {error}\nOr rename the model, or remove its folder.")
        if mistakes:
            raise SettingsError("\n".join(mistakes))


def _corpora_of(runs: Mapping[str, DeclaredRun]) -> dict[str, dict[str, str] | None]:
    """`RunCorpora.hashes` of each run; None if a corpus is missing, which the run's start reports."""
    found, opened = dict[str, dict[str, str] | None](), None
    for name, run in runs.items():
        opened = opened or OpenedCorpora(sizes="trust", cache_gb=run.settings.run.cache_gb)
        try:
            found[name] = open_corpora(run, opened=opened).hashes()
        except UserError:
            found[name] = None
    return found


def _outside(study: Study, tree: Tree) -> list[OutsideRun]:
    """Runs outside the study: those to adopt, and those that models name in `from`."""
    for path in study.study.adopt:
        if not RunFolder(path).settings_file.is_file():
            raise SettingsError(
                f"study.adopt names {path}, which is not the folder of a run. Give one that has run.toml."
            )
    sources = {leaf.model.source for leaf in tree.leaves.values() if leaf.model.source is not None}
    return [*map(OutsideRun, study.study.adopt), *sorted(sources, key=lambda run: str(run.folder.path))]
