"""The data of a run: corpora opened, packing plans made or found, rows and objectives built."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toolkit.core.errors import CorpusError, SettingsError
from toolkit.data import Blend, Corpus, Order, Rows, RowStream, open_rows, tokens_left_out
from toolkit.objectives.base import Objective
from toolkit.objectives.registry import declare
from toolkit.objectives.schedule import Schedule
from toolkit.run.load import schedule_of
from toolkit.run.settings import RunSettings

# Shapes that tensor cores like; ids beyond the tokenizer's are never targets.
_VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus of a run.

    Attributes:
        key: the setting that names it.
        corpus: what it names.
        weight: its share of the rows, relative to the other corpora of the blend.
    """

    key: str
    corpus: Corpus
    weight: float = 1.0


@dataclass(frozen=True)
class RunData:
    """The opened data of a run, and its objectives; `settings` have the vocabulary filled in."""

    settings: RunSettings
    training: tuple[NamedCorpus, ...]
    """The one corpus, or those of the blend."""
    validation: NamedCorpus | None
    training_rows: tuple[Rows, ...]
    """Rows of each training corpus."""
    validation_rows: Rows | None
    objectives: dict[str, Objective]
    """Every scheduled objective, by the run's name for it."""
    evaluated: dict[str, Objective]
    """Those whose validation loss is taken: scheduled ones, `clm`, and `mlm` where there is a mask token."""

    @cached_property
    def schedule(self) -> Schedule:
        """The phases with their first and last steps."""
        return schedule_of(self.settings)

    @property
    def corpus(self) -> Corpus:
        """The training corpus; the first of a blend, all of which have its tokenizer."""
        return self.training[0].corpus

    @property
    def rows(self) -> Rows:
        """The rows of `corpus`."""
        return self.training_rows[0]

    def blend(self) -> Blend:
        """How the training corpora are mixed."""
        return Blend([named.weight for named in self.training], seed=self.settings.run.seed)

    def stream(self) -> RowStream:
        """The rows of the run by sample index."""
        seed, shuffle = self.settings.run.seed, self.settings.data.shuffle
        parts = [(rows, Order(rows.num_rows, seed=seed, shuffle=shuffle)) for rows in self.training_rows]
        return RowStream.of_blend(parts, self.blend())

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each corpus's manifest, by the setting that names it: what may not change on resume."""
        named = [*self.training, *([] if self.validation is None else [self.validation])]
        return {one.key: one.corpus.manifest.manifest_sha256 for one in named}

    def describe(self) -> str:
        """What the run reads and how often; for a blend with a line for each corpus below the first."""
        needed = self.schedule.num_steps * self.settings.train.global_batch_rows
        lines = []
        for named, rows, share in zip(self.training, self.training_rows, self.blend().shares, strict=True):
            corpus, taken = named.corpus, round(needed * share)
            part = "the run takes" if share == 1 else f"{float(share):.2%} of the run takes"
            lines.append(
                f"{corpus.path}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens, "
                f"{rows.num_rows:,} rows of {rows.sequence_length:,}; "
                f"{part} {taken:,} rows, {taken / rows.num_rows:.2f} epochs"
            )
            if left_out := tokens_left_out(corpus, rows, self.settings.data):
                lines.append(left_out)
        if len(self.training) > 1:
            lines.insert(0, f"a blend of {len(self.training):,} corpora, {needed:,} rows in the run:")
        longest = self.settings.model.max_position_embeddings
        if self.rows.sequence_length > longest:
            lines.append(f"rows are longer than model.max_position_embeddings={longest:,}, which exports will say")
        return "\n  ".join(lines)


def open_corpora(settings: RunSettings) -> tuple[tuple[NamedCorpus, ...], NamedCorpus | None]:
    """Open the corpora of `data.train` and the one of `data.validation`.

    Raises:
        CorpusError: one is missing or damaged.
        SettingsError: a blend names one folder twice.
    """
    path = settings.data.validation
    return _open_training(settings), None if path is None else NamedCorpus("data.validation", Corpus(path))


def open_run_data(settings: RunSettings) -> RunData:
    """Open corpora, make or find packing plans, build objectives.

    Raises:
        UserError: if anything is missing, damaged or does not fit.
    """
    training, validation = open_corpora(settings)
    settings = _with_vocabulary(settings, (*training, *([] if validation is None else [validation])))
    corpus, seed = training[0].corpus, settings.run.seed
    if not corpus.tokenizer_folder.is_dir():
        raise CorpusError(
            f"{training[0].key} ({corpus.path}) has no folder tokenizer/, which every checkpoint gets a copy of.\n"
            "Copy the corpus again, with that folder."
        )
    scheduled = {phase.objective for phase in settings.schedule}
    evaluated = {"clm"} | scheduled | ({"mlm"} if corpus.vocabulary.mask_id is not None else set())
    built = {
        name: (settings.objectives.get(name) or declare(name, {})).build(corpus.vocabulary)
        for name in sorted(evaluated | settings.objectives.keys())
    }
    return RunData(
        settings=settings,
        training=training,
        validation=validation,
        training_rows=tuple(open_rows(named.corpus, settings.data, seed=seed) for named in training),
        validation_rows=None if validation is None else open_rows(validation.corpus, settings.data, seed=seed),
        objectives={name: built[name] for name in sorted(scheduled)},
        evaluated={name: built[name] for name in sorted(evaluated)},
    )


def _open_training(settings: RunSettings) -> tuple[NamedCorpus, ...]:
    """The corpora of `data.train`: one, or those of a blend."""
    train = settings.data.train
    if isinstance(train, str):
        return (NamedCorpus("data.train", Corpus(train)),)
    named: dict[Path, str] = {}
    for number, entry in enumerate(train):
        key = f"data.train.{number}.path"
        first = named.setdefault(Path(entry.path).resolve(), key)
        if first != key:
            raise SettingsError(
                f"{first} and {key} both name {entry.path}: a blend takes a corpus once.\n"
                "Leave one entry out and give the other the sum of their weights."
            )
    return tuple(
        NamedCorpus(key, Corpus(entry.path), entry.weight) for key, entry in zip(named.values(), train, strict=True)
    )


def _with_vocabulary(settings: RunSettings, corpora: tuple[NamedCorpus, ...]) -> RunSettings:
    """The settings with `model.vocab_size`, after checking that all corpora have one tokenizer which it fits."""
    first, *others = corpora
    for other in others:
        if other.corpus.fingerprint != first.corpus.fingerprint:
            raise SettingsError(
                f"{first.key} ({first.corpus.path}) and {other.key} ({other.corpus.path}) were made with different "
                f"tokenizers: fingerprints {first.corpus.fingerprint[:12]} and {other.corpus.fingerprint[:12]}.\n"
                "Preprocess both with the same --tokenizer."
            )
    needed, asked = first.corpus.vocabulary.size, settings.model.vocab_size
    if asked is not None and asked < needed:
        raise SettingsError(
            f"model.vocab_size={asked} is smaller than the tokenizer of {first.corpus.path}, which has {needed} ids.\n"
            "Leave model.vocab_size out to take the tokenizer's, or choose a larger one."
        )
    rounded = -(-needed // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    model = settings.model.model_copy(update={"vocab_size": asked or rounded})
    return settings.model_copy(update={"model": model})
