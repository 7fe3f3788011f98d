"""A run resolved: from its settings to everything a rank needs, once.

`resolve_run` opens the data, fills in what settings leave to others (vocabulary, precision, DeepSpeed file) and checks
that all fits. Its result is written to the run folder, from where ranks read it.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted, home_hint
from toolkit.engine import gpus
from toolkit.engine.ds_config import check_parallel, choose_ds_config, read_ds_config, resolve_ds_config, zero_stage
from toolkit.engine.precision import choose_precision
from toolkit.parallel.division import check_pipeline_parallel, check_tensor_parallel
from toolkit.parallel.launcher import read_launcher
from toolkit.parallel.memory import largest_parameter
from toolkit.parallel.topology import (
    LARGEST_DEFAULT_MICRO_BATCH,
    BatchPlan,
    batch_plan,
    describe_small,
    topology,
)
from toolkit.run.data import RunData, open_run_data
from toolkit.run.folder import RunFolder
from toolkit.run.load import to_toml
from toolkit.run.memory import largest_fitting
from toolkit.run.settings import RunSettings
from toolkit.run.stages import describe_stages
from toolkit.run.start import Start, find_start
from toolkit.run.step_plan import BatchPlans


@dataclass(frozen=True)
class ResolvedRun:
    """Everything a rank needs: complete settings, opened data, and how DeepSpeed runs them."""

    data: RunData
    start: Start
    plan: BatchPlan
    """How the ranks share a step."""
    ds_config: dict[str, Any]
    """Complete: nothing in it is "auto"."""
    choices: tuple[str, ...] = ()
    """What was chosen for settings and options that were not given, a line each."""

    @property
    def settings(self) -> RunSettings:
        """Of the run, complete."""
        return self.data.settings

    @property
    def folder(self) -> RunFolder:
        """Of the run."""
        return RunFolder(self.settings.run.dir)

    @cached_property
    def is_finished(self) -> bool:
        """Whether the folder has the checkpoint of the last step, every file of it intact."""
        own = self.start.own
        if own is None or own.step != self.data.schedule.total_steps:
            return False
        newest, _ = self.folder.newest_checkpoint()
        return newest is not None and newest.manifest.step == own.step

    def write(self) -> None:
        """Write what ranks read into the run folder, and a copy of the tokenizer for checkpoints.

        Raises:
            UserError: a file cannot be written.
        """
        folder = self.folder
        if self.is_finished and folder.settings_file.is_file():
            # They say how it was trained.
            return
        folder.write_resolved(to_toml(self.settings), self.ds_config)
        folder.keep_tokenizer(self.data.corpus.tokenizer_folder)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the step it stands at, of how many, and whether it had to do anything."""

    step: int
    total_steps: int
    was_finished: bool

    def __str__(self) -> str:
        if self.was_finished:
            return f"already finished at step {self.step}"
        return f"finished at step {self.step}" if self.step == self.total_steps else f"stopped at step {self.step}"


def resolve_run(settings: RunSettings, *, ds_config: str | None, num_ranks: int) -> ResolvedRun:
    """Complete and check a run.

    Args:
        settings: as `load_run` gives them.
        ds_config: path of a DeepSpeed JSON, or the name of a shipped one; None or "auto": chosen.
        num_ranks: that will run it.

    Raises:
        UserError: something is missing, damaged or does not fit.
    """
    check_wandb(settings)
    check_probe_files(settings)
    start = find_start(settings)
    settings = start.keep_choices(settings)
    plan, source, config, choices = divide_run(settings, ds_config=ds_config, num_ranks=num_ranks)
    chosen = []
    if settings.precision is None:
        launched = read_launcher()
        here = launched.local_world_size if launched.is_launched else num_ranks
        precision, why = choose_precision(zero_stage(config), ranks_per_machine=here)
        settings = settings.model_copy(update={"precision": precision})
        chosen.append(f"precision {precision}: {why}")
    complete = _complete(settings, plan, config, source)
    data = open_run_data(settings)
    start.check(data.settings, data.corpus, key=data.first_corpus.key, hashes=data.hashes())
    if settings.model.vocab_size is None:
        # What fits in memory depends on it.
        plan, source, config, choices = divide_run(data.settings, ds_config=ds_config, num_ranks=num_ranks)
        complete = _complete(data.settings, plan, config, source)
    choices += chosen
    if small := BatchPlans(plan, data.plan).small:
        choices.append(describe_small(small))
    choices += _described_compile(settings, zero_stage(config))
    if settings.parallel.pp > 1 and settings.parallel.stages is None:
        choices.append(describe_stages(data.settings))
    return ResolvedRun(data, start, plan, complete, tuple(choices))


def _complete(settings: RunSettings, plan: BatchPlan, config: dict[str, Any], source: str) -> dict[str, Any]:
    assert settings.precision is not None
    is_known = settings.model.vocab_size is not None
    return resolve_ds_config(
        config,
        batch=plan,
        grad_clip=settings.train.grad_clip,
        precision=settings.precision,
        source=source,
        largest_parameter=largest_parameter(settings.model, settings.parallel.tp) if is_known else None,
    )


def divide_run(
    settings: RunSettings, *, ds_config: str | None, num_ranks: int
) -> tuple[BatchPlan, str, dict[str, Any], list[str]]:
    """How ranks share a run, checked as far as that needs no data.

    Args:
        settings: of the run.
        ds_config: path of a DeepSpeed JSON, or the name of a shipped one; None or "auto": chosen.
        num_ranks: that will run it.

    Returns:
        The division of a step, the DeepSpeed file's name and its content, and what was chosen, a line each.

    Raises:
        SettingsError: model, rows, ranks, degrees of parallelism and DeepSpeed file do not fit.
    """
    parallel, choices = settings.parallel, list[str]()
    ds_config = None if ds_config == "auto" else ds_config
    plan = _batch_plan(settings, settings.train.micro_batch_rows, num_ranks)
    if settings.train.micro_batch_rows is None and settings.model.vocab_size is not None and gpus.has_gpu():
        plan, why = largest_fitting(
            settings,
            lambda plan: read_ds_config(ds_config or choose_ds_config(plan, parallel)[0]),
            data_parallel=plan.data_parallel,
            gpu_bytes=gpus.gpu_bytes(),
        )
        choices.append(f"train.micro_batch_rows {plan.micro_batch_rows}: {why}")
    elif settings.train.micro_batch_rows is None and plan.is_small(LARGEST_DEFAULT_MICRO_BATCH):
        choices.append(describe_small([plan.global_batch_rows]))
    if ds_config is None:
        ds_config, why = choose_ds_config(plan, parallel)
        choices.append(f"--ds-config {ds_config}: {why}")
    config = read_ds_config(ds_config)
    check_parallel(config, parallel, source=ds_config)
    check_tensor_parallel(settings.model, parallel.tp)
    check_pipeline_parallel(settings.model, parallel)
    _check_recomputation(settings, config, source=ds_config)
    if settings.train.on_spike == "skip" and parallel.pp > 1:
        raise SettingsError(
            f'train.on_spike="skip" cannot run with parallel.pp={parallel.pp}: a pipeline updates the weights before '
            'the loss is known.\nSet train.on_spike="stop" or "tell", or parallel.pp=1.'
        )
    return plan, ds_config, config, choices


def _batch_plan(settings: RunSettings, micro_batch_rows: int | None, num_ranks: int) -> BatchPlan:
    copies = topology(0, num_ranks, settings.parallel).dp
    return batch_plan(settings.train.global_batch_rows, micro_batch_rows, data_parallel=copies)


def _described_compile(settings: RunSettings, stage: int) -> list[str]:
    if settings.train.compile is not None or not gpus.has_gpu():
        return []
    if settings.train.is_compiled(zero_stage=stage):
        return ["train.compile true: the run is on GPUs"]
    return [f"train.compile false: ZeRO stage {stage} gathers weights inside blocks, where graphs would break"]


def _check_recomputation(settings: RunSettings, config: dict[str, Any], *, source: str) -> None:
    """At stage 3, DeepSpeed gathers weights inside blocks, where graphs then break."""
    numbers = settings.train
    if numbers.compile and numbers.activation_checkpointing == "selective" and zero_stage(config) == 3:
        raise SettingsError(
            'train.activation_checkpointing="selective" cannot run with train.compile=true and ZeRO stage 3 '
            f"({source}).\n"
            'Set one of them to another value: train.activation_checkpointing="full", train.compile=false, or a file '
            "with stage 2 (ds_configs/zero2.json)."
        )


def read_run(folder: RunFolder, settings: RunSettings, *, num_ranks: int) -> ResolvedRun:
    """A run as `ResolvedRun.write` left it; its data are opened again.

    Args:
        folder: of the run.
        settings: its run.toml, read.
        num_ranks: that run it.

    Raises:
        UserError: a file cannot be read, or was written for another division of a step.
    """
    config = folder.read_ds_config()
    plan = _batch_plan(settings, config["train_micro_batch_size_per_gpu"], num_ranks)
    if plan.accumulation != config["gradient_accumulation_steps"]:
        written = counted(config["gradient_accumulation_steps"], "micro-batch", "micro-batches")
        raise SettingsError(
            f"{folder.ds_config_file} was written for {written} a step on each rank, but {counted(num_ranks, 'rank')} "
            f"of this run need {plan.accumulation}.\nStart the run again as a whole: rank 0 then replaces it."
        )
    return ResolvedRun(open_run_data(settings), find_start(settings), plan, config)


def check_probe_files(settings: RunSettings) -> None:
    """Refuse a probe whose files are missing; what is in them is not looked at.

    Raises:
        SettingsError: naming the setting.
    """
    if settings.probe is None:
        return
    for key, path in (("probe.train", settings.probe.train), ("probe.test", settings.probe.test)):
        if not Path(path).is_file():
            found = "is not a file" if Path(path).exists() else "does not exist"
            raise SettingsError(
                f"{key}={path} {found}.{home_hint(path)}\n"
                f"Give a file of labelled examples, as `toolkit finetune {settings.probe.kind}` reads them, or leave "
                "[probe] out."
            )


def check_wandb(settings: RunSettings) -> None:
    """Refuse `log.wandb` where the package is missing; it is not imported.

    Raises:
        SettingsError: with what to install.
    """
    wanted = settings.log.wandb
    if wanted and find_spec("wandb") is None:
        raise SettingsError(
            f"log.wandb = {str(wanted).lower() if wanted is True else repr(wanted)} asks for Weights & Biases, and its "
            "package is not installed.\nInstall it (pip install wandb), or leave log.wandb out: metrics.jsonl and "
            "TensorBoard have the same numbers."
        )
