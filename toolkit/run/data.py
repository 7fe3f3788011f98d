"""The data of a run: packing plans made or found, rows and objectives built."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.data import Blend, Corpus, DataSettings, Order, Rows, RowStream, open_rows, tokens_left_out
from toolkit.objectives.base import Objective
from toolkit.objectives.registry import declare
from toolkit.objectives.schedule import Schedule
from toolkit.run.checks import CHECKS
from toolkit.run.corpora import NamedCorpus, RunCorpora, open_corpora
from toolkit.run.load import DeclaredRun
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan

# Shapes that tensor cores like; ids beyond the tokenizer's are never targets.
_VOCABULARY_MULTIPLE = 64


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
        """Folders of the corpora."""
        return [str(named.corpus.path) for named in self.corpora]

    def blend(self) -> Blend:
        """Mixture of the corpora."""
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
    corpora: RunCorpora
    training: tuple[TrainingRows, ...]
    """For each phase; phases with equal data have the same."""
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
    def corpus(self) -> Corpus:
        """The training corpus; the first of several, all of which have its tokenizer."""
        return self.corpora.first.corpus

    @property
    def rows(self) -> Rows:
        """The rows of `corpus`."""
        return self.training[0].rows[0]

    def describe(self) -> str:
        """Lines on what the run reads and how often, by the data of its phases; each corpus of a blend has one."""
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
        return "\n  ".join([*lines, *self.corpora.other_rules()])


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


def open_run_data(run: DeclaredRun) -> RunData:
    """Open corpora, make or find packing plans, build objectives."""
    corpora = open_corpora(run.settings, run.plan)
    return read_rows(with_vocabulary(run.settings, corpora), run.plan, corpora)


def with_vocabulary(settings: RunSettings, corpora: RunCorpora) -> RunSettings:
    """Check the corpora; the settings with a vocabulary size: where it is unset, the tokenizer's, rounded up."""
    for check in CHECKS.data:
        check(settings, corpora)
    if settings.model.vocab_size is not None:
        return settings
    rounded = -(-corpora.first.corpus.vocabulary.size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    return settings.model_copy(update={"model": settings.model.model_copy(update={"vocab_size": rounded})})


def read_rows(settings: RunSettings, plan: StepPlan, corpora: RunCorpora) -> RunData:
    """Make or find packing plans of checked corpora, and build objectives."""
    vocabulary, seed, validation = corpora.first.corpus.vocabulary, settings.run.seed, corpora.validation
    scheduled = {phase.objective for phase in settings.schedule}
    evaluated = {"clm"} | scheduled | ({"mlm"} if vocabulary.mask_id is not None else set())
    built = {
        name: (settings.objectives.get(name) or declare(name, {})).build(vocabulary)
        for name in sorted(evaluated | settings.objectives.keys())
    }
    return RunData(
        settings=settings,
        plan=plan,
        corpora=corpora,
        training=_training_rows(plan, corpora.training, seed),
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
