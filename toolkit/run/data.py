"""Data of a run: packing plans (made or found), rows and objectives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.data import Blend, Corpus, DataSettings, Order, Rows, RowStream, Sizes, open_rows, tokens_left_out
from toolkit.objectives.base import Objective
from toolkit.objectives.registry import declare, package_of
from toolkit.run.checks import check_best, check_corpora
from toolkit.run.corpora import NamedCorpus, RunCorpora, open_corpora
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan

_ENDLESS = 1 << 40
"""Steps."""
_WORTH_EPOCHS = 4


@dataclass(frozen=True)
class TrainingRows:
    """Rows that phases train on: one corpus or a blend, all cut in the same way."""

    settings: DataSettings
    corpora: tuple[NamedCorpus, ...]
    rows: tuple[Rows, ...]
    seed: int

    @property
    def paths(self) -> list[str]:
        """Folders or URLs of the corpora."""
        return [named.corpus.place for named in self.corpora]

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
    """Opened data of a run, and its objectives."""

    run: DeclaredRun
    """With the vocabulary size."""
    corpora: RunCorpora
    training: tuple[TrainingRows, ...]
    """Rows of each phase; phases with equal data share them."""
    validation_rows: Mapping[str, Rows]
    """Validation rows by corpus name, as in `DataSettings.validation_folders`."""
    objectives: dict[str, Objective]
    """Every objective of the run's own steps, by its name in the run."""
    evaluated: dict[str, Objective]
    """Objectives with a validation loss: scheduled ones, `clm`, and `mlm` if there is a mask token."""

    @property
    def plugins(self) -> dict[str, str]:
        """Packages that its objectives come from, by kind, without the toolkit's own."""
        declared = self.run.settings.objectives
        kinds = {declared[name].kind if name in declared else name for name in self.evaluated.keys() | declared.keys()}
        return {kind: package for kind in sorted(kinds) if (package := package_of(kind))}

    @property
    def corpus(self) -> Corpus:
        """The training corpus; if there is more than one, the first: all share its tokenizer."""
        return self.corpora.first.corpus

    @property
    def rows(self) -> Rows:
        """The rows of `corpus`."""
        return next(part.rows[0] for part in self.training if part.rows)

    def describe(self) -> str:
        """Lines on what the run reads and how often, by the data of its phases; one for each corpus of a blend."""
        lines, plan = [], self.run.plan
        for part in dict.fromkeys(self.training):
            phases = [phase for phase in plan.schedule.phases if self.training[phase.index] is part]
            needed = sum(plan.rows_of(phase) for phase in phases)
            numbers = ", ".join(str(phase.index + 1) for phase in phases)
            if not needed:
                # Read only by phases before a fork.
                continue
            reader = "the run" if len(phases) == len(plan.schedule.phases) else f"phase {numbers}"
            lines += _describe_part(part, needed, reader)
        shapes = zip(plan.data, plan.models, strict=True)
        lengths = dict.fromkeys((data.sequence_length, model.max_position_embeddings) for data, model in shapes)
        lines += [
            f"rows ({length:,} tokens) exceed model.max_position_embeddings={longest:,}, "
            "the limit that exports will declare"
            for length, longest in lengths
            if length > longest
        ]
        return "\n  ".join(
            [*lines, *self.corpora.small_cache(), *self.corpora.other_rules(), *self.corpora.lost_text()]
        )


def _describe_part(part: TrainingRows, needed: int, reader: str) -> list[str]:
    lines = []
    if len(part.corpora) > 1:
        given = part.settings.weights
        shares = "" if given is None else f" in shares of their tokens ^ {given.temperature:g}"
        lines.append(f"a blend of {len(part.corpora):,} corpora{shares}, {needed:,} rows in {reader}:")
    for named, rows, share in zip(part.corpora, part.rows, part.blend().shares, strict=True):
        corpus, taken = named.corpus, round(needed * share)
        takes = f"{reader} takes" if share == 1 else f"{float(share):.2%} of {reader} takes"
        lines.append(
            f"{corpus.place}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens, "
            f"{rows.num_rows:,} rows of {rows.sequence_length:,}; "
            f"{takes} {taken:,} rows, {taken / rows.num_rows:.2f} epochs"
        )
        if taken > _WORTH_EPOCHS * rows.num_rows:
            lines.append(
                f"{corpus.place}: text repeated more than {_WORTH_EPOCHS} times adds little to what a decoder learns "
                "(arXiv 2305.16264; masks that change hold out longer): more text, or fewer steps, are worth more"
            )
        if left_out := tokens_left_out(corpus, rows, part.settings):
            lines.append(left_out)
    return lines


def in_steps(settings: RunSettings) -> RunSettings:
    """Settings with each phase's `epochs`, the passes over its data, converted to steps; opens the data for it.

    One epoch of a blend is as many rows as its corpora have together.
    """
    if all(phase.epochs is None for phase in settings.schedule):
        return settings
    # Long enough for anything that has to fit into a phase.
    endless = [phase if phase.epochs is None else phase.of_steps(_ENDLESS) for phase in settings.schedule]
    train = settings.train.model_copy(update={"steps": None})
    longer = settings.model_copy(update={"schedule": tuple(endless), "train": train})
    run = DeclaredRun(longer, StepPlan(longer))
    parts, found = _training_rows(run, open_corpora(run).training), []
    for entry, phase in zip(settings.schedule, run.plan.schedule.phases, strict=True):
        num_rows = sum(rows.num_rows for rows in parts[phase.index].rows)
        needed = None if entry.epochs is None else phase.rows.steps_for(math.ceil(entry.epochs * num_rows))
        found.append(entry if needed is None else entry.of_steps(needed))
    return settings.model_copy(update={"schedule": tuple(found)})


def open_run_data(run: DeclaredRun, *, sizes: Sizes = "check") -> RunData:
    """Open corpora, make or find packing plans, build objectives; `sizes` is as in `Corpus`."""
    corpora = open_corpora(run, sizes=sizes)
    check_corpora(run.settings, corpora)
    run = corpora.with_vocabulary(run)
    return read_rows(run, corpora)


def read_rows(run: DeclaredRun, corpora: RunCorpora) -> RunData:
    """Make or find packing plans of checked corpora, and build objectives."""
    settings, vocabulary = run.settings, corpora.first.corpus.vocabulary
    phases, first = run.plan.schedule.phases, run.plan.first_step
    past, scheduled = (
        {name for phase in phases if (phase.stop > first) is own for name in phase.objectives} for own in (False, True)
    )
    evaluated = {"clm"} | scheduled | ({"mlm"} if vocabulary.mask_id is not None else set())
    check_best(settings, evaluated)
    built = {
        name: (settings.objectives.get(name) or declare(name, {})).build(vocabulary)
        for name in sorted(evaluated | settings.objectives.keys() - past)
    }
    return RunData(
        run=run,
        corpora=corpora,
        training=_training_rows(run, corpora.training),
        validation_rows={
            name: open_rows(named.corpus, settings.data, seed=settings.run.seed)
            for name, named in corpora.validation.items()
        },
        objectives={name: built[name] for name in sorted(scheduled)},
        evaluated={name: built[name] for name in sorted(evaluated)},
    )


def _training_rows(run: DeclaredRun, corpora: Sequence[tuple[NamedCorpus, ...]]) -> tuple[TrainingRows, ...]:
    """The rows of each phase; made once for equal data."""
    seed, firsts, made = run.settings.run.seed, run.plan.first_on_data, {}
    for number in dict.fromkeys(firsts):
        data = run.plan.data[number]
        read = corpora[number] if number in run.plan.own_data else ()
        rows = tuple(open_rows(named.corpus, data, seed=seed) for named in read)
        made[number] = TrainingRows(data, corpora[number], rows, seed)
    return tuple(made[number] for number in firsts)
