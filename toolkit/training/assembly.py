"""Putting a run together from its settings: data and objectives first, then the hooks around an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import toolkit
from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry, VocabularyEntry
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.data import Blend, Corpus, Order, Rows, open_rows
from toolkit.data.order.stream import RowStream
from toolkit.engine.ds_config import check_parallel, read_ds_config, resolve_ds_config
from toolkit.engine.engine import Engine
from toolkit.objectives import registry
from toolkit.objectives.base import Objective
from toolkit.objectives.schedule import Schedule
from toolkit.parallel.topology import BatchLayout, batch_layout
from toolkit.run.corpora import NamedCorpus, open_training, open_validation, with_vocabulary
from toolkit.run.folder import RunFolder
from toolkit.run.initial import check_initial
from toolkit.run.resume import snapshot
from toolkit.run.rules import schedule_of
from toolkit.run.settings import RunSettings
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches
from toolkit.training.evaluation import Evaluator
from toolkit.training.hooks import ConsoleHook, Hook, RetentionHook
from toolkit.training.logged_steps import LineWriter, LogHook, TensorBoardWriter
from toolkit.training.loop import Run
from toolkit.training.metrics import MetricsFile
from toolkit.training.run_state import Ancestry, RunState
from toolkit.training.saving import CheckpointSaver
from toolkit.training.speed import Speed, known_peak_flops
from toolkit.training.wandb_writer import WandbWriter, check_wandb


@dataclass(frozen=True)
class RunData:
    """Everything of a run that needs no process group. `settings` have vocabulary and objectives filled in."""

    settings: RunSettings
    training: tuple[NamedCorpus, ...]
    """The one corpus, or those of the blend."""
    validation: NamedCorpus | None
    training_rows: tuple[Rows, ...]
    """Rows of each training corpus."""
    validation_rows: Rows | None
    schedule: Schedule
    objectives: dict[str, Objective]
    """Every scheduled objective, by the run's name for it."""
    evaluated: dict[str, Objective]
    """Those whose validation loss is taken: scheduled ones, `clm`, and `mlm` where there is a mask token."""

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
        """The rows of the run by sample position."""
        seed, shuffle = self.settings.run.seed, self.settings.data.shuffle
        parts = [(rows, Order(rows.num_rows, seed=seed, shuffle=shuffle)) for rows in self.training_rows]
        return RowStream.of_blend(parts, self.blend())

    def corpora(self) -> dict[str, str]:
        """Hash of each corpus's manifest, by the setting that names it: what may not change under way."""
        named = [*self.training, *([] if self.validation is None else [self.validation])]
        return {one.key: one.corpus.manifest.manifest_sha256 for one in named}

    def describe(self) -> str:
        """What the run reads and how often; for a blend with a line for each corpus below the first."""
        needed = self.schedule.total_steps * self.settings.train.global_batch_rows
        lines = []
        for named, rows, share in zip(self.training, self.training_rows, self.blend().shares, strict=True):
            corpus, taken = named.corpus, round(needed * share)
            part = "the run takes" if share == 1 else f"{float(share):.2%} of the run takes"
            lines.append(
                f"{corpus.path}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens, "
                f"{rows.num_rows:,} rows of {rows.sequence_length:,}; "
                f"{part} {taken:,} rows, {taken / rows.num_rows:.2f} epochs"
            )
        if len(lines) > 1:
            lines.insert(0, f"a blend of {len(lines):,} corpora, {needed:,} rows in the run:")
        longest = self.settings.model.max_position_embeddings
        if self.rows.sequence_length > longest:
            lines.append(f"rows are longer than model.max_position_embeddings={longest:,}, which exports will say")
        return "\n  ".join(lines)


def open_run_data(settings: RunSettings) -> RunData:
    """Open corpora, make or find packing plans, build objectives.

    Raises:
        UserError: if anything is missing, damaged or does not fit.
    """
    check_wandb(settings.log.wandb)
    training, validation = open_training(settings), open_validation(settings)
    settings = with_vocabulary(settings, [*training, *([] if validation is None else [validation])])
    corpus = training[0].corpus
    if not corpus.tokenizer_folder.is_dir():
        raise CorpusError(
            f"{training[0].key} ({corpus.path}) has no folder tokenizer/, which every checkpoint gets a copy of.\n"
            "Copy the corpus again, with that folder."
        )
    check_initial(settings, corpus, key=training[0].key)
    seed, schedule = settings.run.seed, schedule_of(settings)
    names = {phase.objective for phase in schedule.phases}
    evaluated = {"clm"} | names | ({"mlm"} if corpus.vocabulary.mask_id is not None else set())
    declared = names | set(settings.objectives)
    built = {name: _objective(settings, name, corpus) for name in sorted(evaluated | declared)}
    settings = _with_objectives(settings, sorted(declared))
    return RunData(
        settings=settings,
        training=training,
        validation=validation,
        training_rows=tuple(open_rows(named.corpus, settings.data, seed=seed) for named in training),
        validation_rows=None if validation is None else open_rows(validation.corpus, settings.data, seed=seed),
        schedule=schedule,
        objectives={name: built[name] for name in sorted(names)},
        evaluated={name: built[name] for name in sorted(evaluated)},
    )


def resolve_engine(settings: RunSettings, source: str, *, num_ranks: int) -> tuple[dict[str, Any], BatchLayout]:
    """The DeepSpeed configuration `source` for this run on so many ranks, and how they share a step.

    Raises:
        SettingsError: where the file, the run and the ranks contradict one another.
    """
    config = read_ds_config(source)
    check_parallel(config, settings.parallel, source=source)
    numbers = settings.train
    layout = batch_layout(numbers.global_batch_rows, numbers.micro_batch_rows, data_parallel=num_ranks)
    resolved = resolve_ds_config(
        config, batch=layout, grad_clip=numbers.grad_clip, precision=settings.precision, source=source
    )
    return resolved, layout


def assemble(
    data: RunData,
    engine: Engine,
    layout: BatchLayout,
    *,
    state: RunState,
    ancestry: Ancestry,
    is_stop_requested: Callable[[], bool],
) -> Run:
    """The run as the loop wants it; writes run.toml on rank 0."""
    settings, ranks = data.settings, engine.ranks
    batcher = Batcher(
        data.stream(),
        layout,
        corpora=[str(named.corpus.path) for named in data.training],
        rank=ranks.rank,
        seed=settings.run.seed,
        device=ranks.device,
        targets_multiple=_targets_multiple(settings, engine),
    )
    return Run(
        engine=engine,
        batcher=batcher,
        layout=layout,
        schedule=data.schedule,
        objectives=data.objectives,
        learning_rate=settings.lr,
        evaluator=_evaluator(data, engine, layout),
        saver=_saver(data, engine, layout, state, ancestry),
        hooks=_hooks(data, engine, state) if ranks.rank == 0 else [],
        is_stop_requested=is_stop_requested,
    )


def _objective(settings: RunSettings, name: str, corpus: Corpus) -> Objective:
    kind, given = _declared(settings, name)
    return registry.build(kind, given, corpus.vocabulary, name=name)


def _with_objectives(settings: RunSettings, names: Sequence[str]) -> RunSettings:
    """The settings with every number of these objectives written out, so that later defaults cannot change the run."""
    whole = {}
    for name in names:
        kind, given = _declared(settings, name)
        checked = registry.get(kind).Settings.model_validate(given)
        # TOML has no value for None.
        whole[name] = {"kind": kind, **checked.model_dump(mode="json", exclude_none=True)}
    return settings.model_copy(update={"objectives": whole})


def _declared(settings: RunSettings, name: str) -> tuple[str, dict[str, Any]]:
    """Kind and settings of what the run calls `name`; the kind is the name unless given."""
    given = dict(settings.objectives.get(name, {}))
    kind = given.pop("kind", name)
    if not isinstance(kind, str):
        raise SettingsError(
            f"objectives.{name}.kind = {kind!r} is refused: it has to be a text. Give a kind of objective: "
            f"{', '.join(registry.known())}."
        )
    return kind, given


def _hooks(data: RunData, engine: Engine, state: RunState) -> list[Hook]:
    """What watches the run on rank 0; writes run.toml."""
    settings, folder = data.settings, Path(data.settings.run.dir)
    run_folder = RunFolder(folder)
    run_folder.write_settings(settings)
    run_folder.keep_tokenizer(data.corpus.tokenizer_folder)
    print(data.describe(), flush=True)
    speed = Speed(settings.model, peak_flops=_peak_flops(settings, engine))
    return [
        LogHook(_writers(settings, folder, state), every=settings.log.every, speed=speed),
        ConsoleHook(data.schedule, data.objectives),
        RetentionHook(settings.checkpoint),
    ]


def _targets_multiple(settings: RunSettings, engine: Engine) -> int:
    is_static = settings.train.compile or engine.ranks.device.type == "cuda"
    return STATIC_TARGETS_MULTIPLE if is_static else 1


def _evaluator(data: RunData, engine: Engine, layout: BatchLayout) -> Evaluator | None:
    if data.validation_rows is None:
        return None
    settings, ranks = data.settings, engine.ranks
    wanted = settings.eval.rows or data.validation_rows.num_rows
    batches = EvaluationBatches(
        data.validation_rows,
        num_rows=min(wanted, data.validation_rows.num_rows),
        micro_batch_rows=layout.micro_batch_rows,
        seed=settings.run.seed,
        rank=ranks.rank,
        num_ranks=ranks.world_size,
        device=ranks.device,
        targets_multiple=_targets_multiple(settings, engine),
    )
    return Evaluator(engine, batches, data.evaluated, every=settings.eval.every)


def _saver(data: RunData, engine: Engine, layout: BatchLayout, state: RunState, ancestry: Ancestry) -> CheckpointSaver:
    return CheckpointSaver(
        engine,
        Path(data.settings.run.dir) / CHECKPOINTS_FOLDER,
        data.settings.checkpoint,
        manifest=_manifest(data, engine, ancestry),
        tokenizer_folder=RunFolder(Path(data.settings.run.dir)).tokenizer,
        first_step=state.step,
        rows_per_step=layout.global_batch_rows,
    )


def _writers(settings: RunSettings, folder: Path, state: RunState) -> list[LineWriter]:
    """Where logged steps go."""
    writers: list[LineWriter] = [MetricsFile(folder, resumed_step=state.step)]
    if settings.log.tensorboard:
        writers.append(TensorBoardWriter(folder / "tensorboard", first_step=state.step))
    if settings.log.wandb:
        project = settings.log.wandb if isinstance(settings.log.wandb, str) else None
        writers.append(WandbWriter(folder, project=project, first_step=state.step, settings=snapshot(settings)))
    return writers


def _peak_flops(settings: RunSettings, engine: Engine) -> float | None:
    """What all devices of the run can do at most; None where nobody says it."""
    given = settings.log.peak_tflops
    ranks = engine.ranks
    each = given * 1e12 if given else known_peak_flops(ranks.device, precision=settings.precision)
    return each * ranks.world_size if each else None


def _manifest(data: RunData, engine: Engine, ancestry: Ancestry) -> CheckpointManifest:
    """The manifest of the run's checkpoints, but for where the run stands."""
    return CheckpointManifest(
        toolkit_version=toolkit.__version__,
        step=0,
        optimizer_step=ancestry.optimizer_step,
        tokens=0,
        data_position=0,
        data_digest="",
        settings=snapshot(data.settings),
        corpora=data.corpora(),
        vocabulary=VocabularyEntry.of(data.corpus.vocabulary, data.corpus.fingerprint),
        layout=LayoutEntry(world_size=engine.ranks.world_size, zero_stage=engine.zero_stage),
        tensors={},
        files={},
        losses={},
        origin=ancestry.origin,
    )
