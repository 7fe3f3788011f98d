"""The data of a run: corpora opened, packing plans made or found, rows and objectives built."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.errors import CorpusError, SettingsError
from toolkit.data import Blend, Corpus, DataSettings, Order, Rows, RowStream, open_rows, tokens_left_out
from toolkit.objectives.base import Objective
from toolkit.objectives.registry import declare
from toolkit.objectives.schedule import Schedule
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan, data_of_phases

_OPTIONS = {"parse_special_text": "--special-text", "add_bos": "--no-bos", "add_eod": "--eod or --no-eod"}
"""What a corpus records of its encoding, by the options of `toolkit preprocess` that decide it."""

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
class TrainingRows:
    """Rows that phases train on: one corpus or a blend, cut in one way."""

    settings: DataSettings
    corpora: tuple[NamedCorpus, ...]
    rows: tuple[Rows, ...]
    """Of each corpus."""
    seed: int

    @property
    def paths(self) -> list[str]:
        """Of the corpora."""
        return [str(named.corpus.path) for named in self.corpora]

    def blend(self) -> Blend:
        """How the corpora are mixed."""
        return Blend([named.weight for named in self.corpora], seed=self.seed)

    def stream(self) -> RowStream:
        """The rows by sample index."""
        shuffle = self.settings.shuffle
        parts = [(rows, Order(rows.num_rows, seed=self.seed, shuffle=shuffle)) for rows in self.rows]
        return RowStream.of_blend(parts, self.blend())


@dataclass(frozen=True)
class RunData:
    """The opened data of a run, and its objectives; `settings` have the vocabulary filled in."""

    settings: RunSettings
    plan: StepPlan
    """Its phases and steps."""
    training: tuple[TrainingRows, ...]
    """For each phase; phases with equal data have the same."""
    validation: NamedCorpus | None
    validation_rows: Rows | None
    objectives: dict[str, Objective]
    """Every scheduled objective, by the run's name for it."""
    evaluated: dict[str, Objective]
    """Those whose validation loss is taken: scheduled ones, `clm`, and `mlm` where there is a mask token."""

    @property
    def schedule(self) -> Schedule:
        """The phases with their first and last steps."""
        return self.plan.schedule

    @property
    def first_corpus(self) -> NamedCorpus:
        """The training corpus; the first of several, all of which have its tokenizer."""
        return self.training[0].corpora[0]

    @property
    def corpus(self) -> Corpus:
        """That of `first_corpus`."""
        return self.first_corpus.corpus

    @property
    def rows(self) -> Rows:
        """The rows of `corpus`."""
        return self.training[0].rows[0]

    def named_corpora(self) -> list[NamedCorpus]:
        """All corpora of the run; of phases with equal data, those of the first."""
        training = [named for part in dict.fromkeys(self.training) for named in part.corpora]
        return training if self.validation is None else [*training, self.validation]

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each corpus's manifest, by the setting that names it: what may not change on resume."""
        return corpus_hashes(self.named_corpora())

    def describe(self) -> str:
        """What the run reads and how often, by the data of its phases; each corpus of a blend has a line."""
        lines = []
        for part in dict.fromkeys(self.training):
            phases = [phase for phase in self.schedule.phases if self.training[phase.index] is part]
            needed = sum(self.plan.rows_of(phase) for phase in phases)
            numbers = ", ".join(str(phase.index + 1) for phase in phases)
            reader = "the run" if len(phases) == len(self.schedule.phases) else f"phase {numbers}"
            lines += _describe_part(part, needed, reader)
        shapes = zip(self.plan.data, self.plan.models, strict=True)
        lengths = dict.fromkeys((data.sequence_length, model.max_position_embeddings) for data, model in shapes)
        lines += [
            f"rows of {length:,} are longer than model.max_position_embeddings={longest:,}, which exports will say"
            for length, longest in lengths
            if length > longest
        ]
        corpora = dict.fromkeys([*(named for part in self.training for named in part.corpora), self.validation])
        lines += _other_rules([named for named in corpora if named is not None])
        return "\n  ".join(lines)


def _describe_part(part: TrainingRows, needed: int, reader: str) -> list[str]:
    lines = []
    if len(part.corpora) > 1:
        lines.append(f"a blend of {len(part.corpora):,} corpora, {needed:,} rows in {reader}:")
    for named, rows, share in zip(part.corpora, part.rows, part.blend().shares, strict=True):
        corpus, taken = named.corpus, round(needed * share)
        takes = f"{reader} takes" if share == 1 else f"{float(share):.2%} of {reader} takes"
        lines.append(
            f"{corpus.path}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens, "
            f"{rows.num_rows:,} rows of {rows.sequence_length:,}; "
            f"{takes} {taken:,} rows, {taken / rows.num_rows:.2f} epochs"
        )
        if left_out := tokens_left_out(corpus, rows, part.settings):
            lines.append(left_out)
    return lines


def _other_rules(corpora: Sequence[NamedCorpus]) -> list[str]:
    """Lines on corpora that were encoded by other rules than the first; those of earlier versions have no frame."""
    lines = []
    first, *others = corpora
    for other in others:
        ours, theirs = (named.corpus.manifest.tokenizer.encoding for named in (first, other))
        if ours is None or theirs is None:
            continue
        has_frames = ours.frame is not None and theirs.frame is not None
        keys = ["parse_special_text"] if has_frames else list(_OPTIONS)
        options = [_OPTIONS[key] for key in keys if getattr(ours, key) != getattr(theirs, key)]
        if options:
            lines.append(
                f"{other.key} ({other.corpus.path}) and {first.key} ({first.corpus.path}) were preprocessed with "
                f"different {', '.join(options)}; preprocess both alike unless that is meant"
            )
    return lines


def corpus_hashes(named: Iterable[NamedCorpus | None]) -> dict[str, str]:
    """SHA-256 of each corpus's manifest, by the setting that names it."""
    return {one.key: one.corpus.manifest.manifest_sha256 for one in named if one is not None}


def open_corpora(settings: RunSettings) -> tuple[tuple[tuple[NamedCorpus, ...], ...], NamedCorpus | None]:
    """Open the corpora of each phase and the one of `data.validation`; each folder once.

    Raises:
        CorpusError: one is missing or damaged.
        SettingsError: a blend names one folder twice.
    """
    path, opened = settings.data.validation, dict[str, Corpus]()
    training = []
    for number, data in enumerate(data_of_phases(settings)):
        own = settings.schedule[number].data or {}
        training.append(
            _open_training(data, f"schedule.{number}.data.train" if "train" in own else "data.train", opened)
        )
    return tuple(training), None if path is None else NamedCorpus("data.validation", Corpus(path))


def open_run_data(settings: RunSettings) -> RunData:
    """Open corpora, make or find packing plans, build objectives.

    Raises:
        UserError: if anything is missing, damaged or does not fit.
    """
    corpora, validation = open_corpora(settings)
    settings = _with_vocabulary(settings, [named for part in corpora for named in part], validation)
    first, seed = corpora[0][0], settings.run.seed
    vocabulary = first.corpus.vocabulary
    if not first.corpus.tokenizer_folder.is_dir():
        raise CorpusError(
            f"{first.key} ({first.corpus.path}) has no folder tokenizer/, which every checkpoint gets a copy of.\n"
            "Copy the corpus again, with that folder."
        )
    scheduled = {phase.objective for phase in settings.schedule}
    evaluated = {"clm"} | scheduled | ({"mlm"} if vocabulary.mask_id is not None else set())
    built = {
        name: (settings.objectives.get(name) or declare(name, {})).build(vocabulary)
        for name in sorted(evaluated | settings.objectives.keys())
    }
    plan = StepPlan(settings)
    return RunData(
        settings=settings,
        plan=plan,
        training=_training_rows(plan, corpora, seed),
        validation=validation,
        validation_rows=None if validation is None else open_rows(validation.corpus, settings.data, seed=seed),
        objectives={name: built[name] for name in sorted(scheduled)},
        evaluated={name: built[name] for name in sorted(evaluated)},
    )


def _training_rows(plan: StepPlan, corpora: Sequence[tuple[NamedCorpus, ...]], seed: int) -> tuple[TrainingRows, ...]:
    """The rows of each phase; made once for equal data."""
    parts: list[TrainingRows] = []
    for number, data in enumerate(plan.data):
        if data in plan.data[:number]:
            parts.append(parts[plan.data.index(data)])
        else:
            rows = tuple(open_rows(named.corpus, data, seed=seed) for named in corpora[number])
            parts.append(TrainingRows(data, corpora[number], rows, seed))
    return tuple(parts)


def _open_training(data: DataSettings, key: str, opened: dict[str, Corpus]) -> tuple[NamedCorpus, ...]:
    """The corpora of a phase: one, or those of a blend."""

    def corpus(path: str) -> Corpus:
        if path not in opened:
            opened[path] = Corpus(path)
        return opened[path]

    if isinstance(data.train, str):
        return (NamedCorpus(key, corpus(data.train)),)
    named: dict[Path, str] = {}
    for number, entry in enumerate(data.train):
        entry_key = f"{key}.{number}.path"
        first = named.setdefault(Path(entry.path).resolve(), entry_key)
        if first != entry_key:
            raise SettingsError(
                f"{first} and {entry_key} both name {entry.path}: a blend takes a corpus once.\n"
                "Leave one entry out and give the other the sum of their weights."
            )
    return tuple(
        NamedCorpus(entry_key, corpus(entry.path), entry.weight)
        for entry_key, entry in zip(named.values(), data.train, strict=True)
    )


def _with_vocabulary(
    settings: RunSettings, training: Sequence[NamedCorpus], validation: NamedCorpus | None
) -> RunSettings:
    """The settings with `model.vocab_size`, after checking that all corpora have one tokenizer which it fits."""
    first, *others = [*training, *([] if validation is None else [validation])]
    for other in others:
        if other.corpus.fingerprint != first.corpus.fingerprint:
            raise SettingsError(
                f"{first.key} ({first.corpus.path}) and {other.key} ({other.corpus.path}) were made with different "
                f"tokenizers: fingerprints {first.corpus.fingerprint[:12]} and {other.corpus.fingerprint[:12]}.\n"
                "Preprocess both with the same --tokenizer."
            )
    _check_frames([first, *others])
    needed, asked = first.corpus.vocabulary.size, settings.model.vocab_size
    if asked is not None and asked < needed:
        raise SettingsError(
            f"model.vocab_size={asked} is smaller than the tokenizer of {first.corpus.path}, which has {needed} ids.\n"
            "Leave model.vocab_size out to take the tokenizer's, or choose a larger one."
        )
    rounded = -(-needed // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    model = settings.model.model_copy(update={"vocab_size": asked or rounded})
    return settings.model_copy(update={"model": model})


def _check_frames(corpora: Sequence[NamedCorpus]) -> None:
    """Refuse corpora whose documents have different ids around them; those of earlier versions do not say which."""
    frames = []
    for named in corpora:
        encoding = named.corpus.manifest.tokenizer.encoding
        if encoding is not None and encoding.frame is not None:
            frames.append((named, encoding.frame))
    for named, frame in frames[1:]:
        first, expected = frames[0]
        if frame != expected:
            raise SettingsError(
                f"the documents of {first.key} ({first.corpus.path}) have {expected}, and those of {named.key} "
                f"({named.corpus.path}) have {frame}: a model learns one beginning and end, which exports then use.\n"
                "Preprocess both with the same --eod, --no-eod and --no-bos."
            )
