"""Opened corpora of a run: those of each phase, and those of `data.validation`."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.core.errors import CorpusError, SettingsError, UserError
from toolkit.data import Corpus, DataSettings, Sizes
from toolkit.model.config import padded_vocabulary
from toolkit.parallel.launcher import read_launcher
from toolkit.run.declared_run import DeclaredRun
from toolkit.storage import ShardCache, is_url

_OPTIONS = {"parse_special_text": "--special-text", "add_bos": "--no-bos", "add_eod": "--eod or --no-eod"}
"""Encoding settings that a corpus records -> the options of `toolkit preprocess` that set them."""


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus of a run, the setting that names it, and its share of the rows relative to the others of a blend."""

    key: str
    corpus: Corpus
    weight: float = 1.0


@dataclass(frozen=True)
class RunCorpora:
    """Opened corpora of a run."""

    training: tuple[tuple[NamedCorpus, ...], ...]
    """For each phase, its corpus or those of its blend; phases with equal data share them. Empty if only phases before
    a fork read them, and they are gone."""
    validation: Mapping[str, NamedCorpus]
    """Validation corpora by name, as in `DataSettings.validation_folders`."""
    first: NamedCorpus
    """The training corpus; if there is more than one, the first that is read: all share its tokenizer."""
    named: tuple[NamedCorpus, ...]
    """Distinct corpora, starting with `first`."""
    cache: ShardCache | None = None
    """Cache of corpora in object storage, if there are any."""
    gone: tuple[str, ...] = ()
    """Settings that name missing corpora, which only phases before a fork read."""

    def hashes(self, before: Mapping[str, str] | None = None) -> dict[str, str]:
        """SHA-256 of each corpus's manifest, by the setting that names it; these may not change on resume.

        `before` are the hashes in the checkpoint that a run continues from, used for corpora that are gone.
        """
        gone = tuple(f"{key}." for key in self.gone)
        known = {key: found for key, found in (before or {}).items() if f"{key}.".startswith(gone)}
        return known | {named.key: named.corpus.manifest.manifest_sha256 for named in self.named}

    def with_vocabulary(self, run: DeclaredRun) -> DeclaredRun:
        """The run with a vocabulary size: if unset, the tokenizer's, rounded up."""
        settings = run.settings
        if settings.model.vocab_size is not None:
            return run
        size = padded_vocabulary(self.first.corpus.vocabulary.size)
        model = settings.model.model_copy(update={"vocab_size": size})
        return replace(run, settings=settings.model_copy(update={"model": model}))

    def small_cache(self) -> list[str]:
        """A line if the corpora in object storage do not fit the cache, so that shards are fetched repeatedly."""
        cache, size = self.cache, sum(named.corpus.num_bytes for named in self.named if is_url(named.corpus.place))
        if cache is None or size <= cache.most_bytes:
            return []
        return [
            f"{size / 1e9:.3g} GB of shards do not fit the {cache.most_bytes / 1e9:.3g} GB of {cache.folder}: they are "
            'fetched again when they are read again, rarely with data.shuffle = "blocks"; or set run.cache_gb higher'
        ]

    def lost_text(self) -> list[str]:
        """Lines on corpora whose tokens lose more than 1 % of the text."""
        texts = [(named, named.corpus.manifest.text) for named in self.named]
        found = [(named, text and text.losses(named.corpus.manifest.tokens, most=0.01)) for named, text in texts]
        return [f"{named.key} ({named.corpus.place}): {losses}" for named, losses in found if losses]

    def other_rules(self) -> list[str]:
        """Lines on corpora encoded by other rules than the first; corpora of earlier versions record no frame."""
        lines = []
        first, *others = self.named
        for other in others:
            ours, theirs = (named.corpus.manifest.tokenizer.encoding for named in (first, other))
            if ours is None or theirs is None:
                continue
            has_frames = ours.frame is not None and theirs.frame is not None
            keys = ["parse_special_text"] if has_frames else list(_OPTIONS)
            options = [_OPTIONS[key] for key in keys if getattr(ours, key) != getattr(theirs, key)]
            if options:
                lines.append(
                    f"{other.key} ({other.corpus.place}) and {first.key} ({first.corpus.place}) were preprocessed with "
                    f"different {', '.join(options)}; preprocess both alike unless that is meant"
                )
        return lines


def open_corpora(run: DeclaredRun, *, sizes: Sizes = "check", opened: "OpenedCorpora | None" = None) -> RunCorpora:
    """Open the corpora of each phase and those of `data.validation`; `sizes` is as in `Corpus`.

    Corpora that only phases before a fork read may be gone. Different runs may share `opened`.
    """
    plan, opened = run.plan, opened or OpenedCorpora(sizes=sizes, cache_gb=run.settings.run.cache_gb)
    found, gone = dict[int, tuple[NamedCorpus, ...]](), list[str]()
    for number in dict.fromkeys([*plan.own_data, *plan.first_on_data]):
        own = run.settings.schedule[number].data or {}
        key = f"schedule.{number}.data.train" if "train" in own else "data.train"
        try:
            found[number] = _open_training(plan.data[number], key, opened)
        except SettingsError:
            raise
        except UserError:
            if number in plan.own_data:
                raise
            found[number] = ()
            gone.append(key)
    validation = {
        name: NamedCorpus(f"data.validation.{name}".removesuffix("."), opened.corpus(path))
        for name, path in run.settings.data.validation_folders.items()
    }
    training = tuple(found[first] for first in plan.first_on_data)
    named = [*itertools.chain(*found.values()), *validation.values()]
    return RunCorpora(training, validation, named[0], tuple(dict.fromkeys(named)), opened.cache, tuple(gone))


class OpenedCorpora:
    """Corpora of runs, by folder or URL, each opened once."""

    def __init__(self, *, sizes: Sizes, cache_gb: float | None = None) -> None:
        self._cache_gb, self._sizes, self._opened = cache_gb, sizes, dict[str, Corpus]()
        self.cache: ShardCache | None = None

    def corpus(self, place: str) -> Corpus:
        """The opened corpus at a place; shards in object storage are fetched when they are read."""
        if place not in self._opened:
            opened = self._open_cached(place) if is_url(place) else Corpus(place, sizes=self._sizes)
            self._opened[place] = opened
        return self._opened[place]

    def _open_cached(self, url: str) -> Corpus:
        if self.cache is None:
            most_bytes = None if self._cache_gb is None else int(self._cache_gb * 1e9)
            self.cache = ShardCache(most_bytes=most_bytes, num_sharers=read_launcher().local_world_size)
        source = self.cache.corpus(url)
        try:
            return Corpus(source.folder, source=source, sizes=self._sizes)
        except CorpusError as error:
            # The message names the cached corpus.json, but the fault is in the storage.
            raise CorpusError(str(error).replace(str(source.folder), url)) from None


def _open_training(data: DataSettings, key: str, opened: OpenedCorpora) -> tuple[NamedCorpus, ...]:
    corpus = opened.corpus
    if isinstance(data.train, str):
        return (NamedCorpus(key, corpus(data.train)),)
    named: dict[Path, str] = {}
    for number, entry in enumerate(data.train):
        entry_key = f"{key}.{number}.path"
        first = named.setdefault(Path(entry.path).resolve(), entry_key)
        if first != entry_key:
            raise SettingsError(
                f"{first} and {entry_key} both name {entry.path}: a blend takes a corpus once.\n"
                "Leave one entry out, and add its weight, if it has one, to the other's."
            )
    return tuple(
        NamedCorpus(entry_key, corpus(entry.path), data.weight_of(entry, corpus(entry.path).num_tokens))
        for entry_key, entry in zip(named.values(), data.train, strict=True)
    )
