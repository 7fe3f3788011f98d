"""Resolution of a run: from its settings to everything a rank needs, once.

`resolve_run` opens the data, fills in what settings leave open (vocabulary, precision, DeepSpeed file) and checks that
everything fits. Its result is written to the run folder, where ranks read it.
"""

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from toolkit.checkpoint.read import newest_intact
from toolkit.core.text import ending, quoted
from toolkit.data import Sizes
from toolkit.engine import gpus
from toolkit.engine.ds_config import resolve_ds_config, zero_stage
from toolkit.engine.precision import choose_precision
from toolkit.parallel.launcher import read_launcher
from toolkit.parallel.memory import largest_parameter
from toolkit.run.checks import check_corpora, check_wandb
from toolkit.run.continuation import Continuation, find_continuation
from toolkit.run.corpora import open_corpora
from toolkit.run.data import RunData, open_run_data, read_rows
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.division import Division, describe_small, divide_run, read_division
from toolkit.run.load import is_as_written, to_toml
from toolkit.run.settings import CompleteSettings


@dataclass(frozen=True)
class ResolvedRun(DeclaredRun):
    """Everything a rank needs: complete settings, opened data, and how DeepSpeed runs them."""

    settings: CompleteSettings
    data: RunData
    division: Division
    """Nothing in its DeepSpeed file is "auto"; its choices are those of the whole run."""
    continuation: Continuation

    def is_past(self, step: int) -> bool:
        """Return whether the folder has a checkpoint of this step or a later one, with every file intact."""
        if not self.continuation.is_own or self.continuation.step < step:
            return False
        newest, _ = newest_intact(self.folder.checkpoints)
        return newest is not None and newest.manifest.step >= step

    def write(self) -> None:
        """Write the files that ranks read to the run folder, and a copy of the tokenizer for checkpoints.

        An empty folder first gets the checkpoint that is in `checkpoint.copy_to`.
        """
        folder = self.folder
        # A file that an interrupted start has left is replaced, whatever its settings; one of the user's is kept.
        if not folder.steps() and not is_as_written(folder.settings_file):
            kept = next(file for n in count(1) if not (file := folder.path / f"run.given-{n}.toml").exists())
            shutil.copyfile(folder.settings_file, kept)
            print(f"{folder.settings_file} is replaced by the run's resolved settings; yours is kept as {kept}")
        found = self.continuation.hashed(folder)
        if found.manifest != self.continuation.manifest:
            found.check(self, self.data.corpora)
        found.write(folder)
        if found.is_own and found.step >= self.plan.schedule.total_steps and folder.settings_file.is_file():
            # The files there say how it was trained.
            return
        folder.write(folder.settings_file, to_toml(self.settings))
        folder.write_json(folder.ds_config_file, self.division.ds_config)
        corpus = self.data.corpus
        folder.keep_tokenizer(corpus.tokenizer_folder, corpus.manifest.tokenizer_files)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: its step, the total, and whether it was there already, with nothing left to do."""

    folder: Path
    step: int
    total_steps: int
    was_there: bool

    def __str__(self) -> str:
        if self.step == self.total_steps:
            return f"{'already ' * self.was_there}finished at step {self.step}"
        return f"{'already' if self.was_there else 'stopped'} at step {self.step}"

    def ending(self, until: int | None) -> str:
        """Last output of a command that trains to the end, or `until` a step."""
        if self.step < self.total_steps:
            saved = f", saved in {self.folder}" if self.step else ""
            asked = " without --until" if until is not None and self.step >= until else ""
            return f"{self} of {self.total_steps:,}{saved}. Start the same command again{asked} to resume."
        run = quoted(self.folder)
        return ending(f"{self} in {self.folder}", f"toolkit inspect {run}", f"toolkit convert --to-hf {run} OUT")


def resolve_run(
    run: DeclaredRun, *, ds_config: str | None, num_ranks: int, continuation: Continuation | None = None
) -> ResolvedRun:
    """Complete and check a run that `num_ranks` will run; `ds_config` is as in `divide_run`.

    The continuation is found unless one is given.
    """
    check_wandb(run.settings)
    continuation = continuation or find_continuation(run)
    run = continuation.keep_choices(run)
    corpora = open_corpora(run)
    check_corpora(run.settings, corpora)
    run = corpora.with_vocabulary(run)
    division = divide_run(run, ds_config=ds_config, num_ranks=num_ranks)
    precision, stage = run.settings.precision, zero_stage(division.ds_config)
    choices = [*continuation.notes, *division.choices]
    if precision is None:
        launched = read_launcher()
        here = launched.local_world_size if launched.is_launched else num_ranks
        precision, why = choose_precision(stage, ranks_per_machine=here)
        choices.append(f"precision {precision}: {why}")
    settings = CompleteSettings.of(run.settings, precision=precision)
    complete = resolve_ds_config(
        division.ds_config,
        batch=division.batch,
        grad_clip=settings.train.grad_clip,
        precision=settings.precision,
        source=division.source,
        largest_parameter=largest_parameter(settings.model, settings.parallel.tp),
    )
    run = replace(run, settings=settings)
    continuation.check(run, corpora)
    data = read_rows(run, corpora)
    if small := division.batches.small:
        choices.append(describe_small(small))
    broken = f"ZeRO stage {stage} gathers weights inside blocks, where graphs would break"
    if settings.train.compile is None and gpus.has_gpu():
        choices.append(f"train.compile {'true: the run is on GPUs' if division.is_compiled else f'false: {broken}'}")
    elif settings.train.compile and stage == 3:
        choices.append(f"train.compile true, but {broken}: leave it unset")
    if settings.parallel.pp > 1 and settings.parallel.stages is None:
        choices.append(run.describe_stages())
    division = replace(division, ds_config=complete, choices=tuple(choices))
    return ResolvedRun(settings, run.plan, data, division, continuation, before=run.before)


def read_run(run: DeclaredRun, continuation: Continuation, *, num_ranks: int) -> ResolvedRun:
    """Open again a run that `ResolvedRun.write` wrote to its folder; `run` is from its run.toml."""
    before = continuation.before
    run = replace(run, before=None if before is None else before.layout)
    # One rank checks for all of a machine, which may have its own copies of the files.
    sizes: Sizes = "check" if read_launcher().local_rank == 0 else "trust"
    division, data = read_division(run, num_ranks=num_ranks), open_run_data(run, sizes=sizes)
    settings = CompleteSettings.of(data.run.settings, precision=run.settings.precision)
    return ResolvedRun(settings, run.plan, data, division, continuation, before=run.before)
