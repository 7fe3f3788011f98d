"""A run resolved: from its settings to everything a rank needs, once.

`resolve_run` opens the data, fills in what settings leave to others (vocabulary, precision, DeepSpeed file) and checks
that all fits. Its result is written to the run folder, from where ranks read it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.engine import gpus
from toolkit.engine.ds_config import resolve_ds_config, zero_stage
from toolkit.engine.precision import choose_precision
from toolkit.parallel.launcher import read_launcher
from toolkit.parallel.memory import largest_parameter
from toolkit.parallel.topology import describe_small
from toolkit.run.checks import CHECKS, Checks
from toolkit.run.corpora import open_corpora
from toolkit.run.data import RunData, open_run_data, read_rows, with_vocabulary
from toolkit.run.division import Division, batch_of, describe_stages, divide_run, is_compiled
from toolkit.run.folder import RunFolder
from toolkit.run.load import DeclaredRun, to_toml
from toolkit.run.settings import CompleteSettings
from toolkit.run.start import Start, find_start
from toolkit.run.step_plan import BatchPlans


@dataclass(frozen=True)
class ResolvedRun(DeclaredRun):
    """Everything a rank needs: complete settings, opened data, and how DeepSpeed runs them."""

    settings: CompleteSettings
    data: RunData
    start: Start
    division: Division
    """Nothing in its DeepSpeed file is "auto"; its choices are those of the whole run."""

    @cached_property
    def batches(self) -> BatchPlans:
        """Division of each step over the ranks."""
        return BatchPlans(self.division.batch, self.plan)

    @cached_property
    def is_finished(self) -> bool:
        """True once the folder has the checkpoint of the last step, every file of it intact."""
        own = self.start.own
        if own is None or own.step != self.plan.schedule.total_steps:
            return False
        newest, _ = self.folder.newest_checkpoint()
        return newest is not None and newest.manifest.step == own.step

    def write(self) -> None:
        """Write what ranks read into the run folder, and a copy of the tokenizer for checkpoints."""
        folder = self.folder
        if self.is_finished and folder.settings_file.is_file():
            # They say how it was trained.
            return
        folder.write_resolved(to_toml(self.settings), dict(self.division.ds_config))
        folder.keep_tokenizer(self.data.corpus.tokenizer_folder)


@dataclass(frozen=True)
class Outcome:
    """End of a run: the step it stands at, of how many, and whether it had to do anything."""

    step: int
    total_steps: int
    was_finished: bool

    def __str__(self) -> str:
        if self.was_finished:
            return f"already finished at step {self.step}"
        return f"finished at step {self.step}" if self.step == self.total_steps else f"stopped at step {self.step}"


def resolve_run(run: DeclaredRun, *, ds_config: str | None, num_ranks: int, checks: Checks = CHECKS) -> ResolvedRun:
    """Complete and check a run that `num_ranks` will run; `ds_config` is as in `divide_run`.

    Raises:
        UserError: something is missing, damaged or does not fit.
    """
    plan = run.plan
    for check in checks.machine:
        check(run.settings)
    start = find_start(run.settings)
    declared = start.keep_choices(run.settings)
    corpora = open_corpora(declared, plan)
    declared = with_vocabulary(declared, corpora)
    division = divide_run(declared, plan, ds_config=ds_config, num_ranks=num_ranks)
    precision, choices, stage = declared.precision, list(division.choices), zero_stage(division.ds_config)
    if precision is None:
        launched = read_launcher()
        here = launched.local_world_size if launched.is_launched else num_ranks
        precision, why = choose_precision(stage, ranks_per_machine=here)
        choices.append(f"precision {precision}: {why}")
    settings = CompleteSettings.of(declared, precision=precision)
    complete = resolve_ds_config(
        division.ds_config,
        batch=division.batch,
        grad_clip=settings.train.grad_clip,
        precision=settings.precision,
        source=division.source,
        largest_parameter=largest_parameter(settings.model, settings.parallel.tp),
    )
    start.check(settings, plan, corpora)
    data = read_rows(settings, plan, corpora)
    if small := BatchPlans(division.batch, plan).small:
        choices.append(describe_small(small))
    if settings.train.compile is None and gpus.has_gpu():
        why = f"ZeRO stage {stage} gathers weights inside blocks, where graphs would break"
        choices.append(f"train.compile {'true: the run is on GPUs' if division.is_compiled else f'false: {why}'}")
    if settings.parallel.pp > 1 and settings.parallel.stages is None:
        choices.append(describe_stages(settings, plan))
    return ResolvedRun(settings, plan, data, start, replace(division, ds_config=complete, choices=tuple(choices)))


def read_run(folder: RunFolder, run: DeclaredRun, *, num_ranks: int) -> ResolvedRun:
    """Open a run again that `ResolvedRun.write` left in its folder; `run` is its run.toml, read."""
    config = folder.read_ds_config()
    batch = batch_of(run.settings, config["train_micro_batch_size_per_gpu"], num_ranks)
    if batch.accumulation != config["gradient_accumulation_steps"]:
        written = counted(config["gradient_accumulation_steps"], "micro-batch", "micro-batches")
        raise SettingsError(
            f"{folder.ds_config_file} was written for {written} a step on each rank, but {counted(num_ranks, 'rank')} "
            f"of this run need {batch.accumulation}.\nStart the run again as a whole: rank 0 then replaces it."
        )
    data = open_run_data(run)
    settings = CompleteSettings.of(data.settings, precision=run.settings.precision)
    division = Division(batch, config, str(folder.ds_config_file), is_compiled(settings.train, config))
    return ResolvedRun(settings, run.plan, data, find_start(settings), division)
