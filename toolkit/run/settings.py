"""Settings of one pretraining run: the whole, and the loop's own tables (run, train, log, eval)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, InstanceOf, PlainSerializer, model_validator

from toolkit.checkpoint.retention import CheckpointSettings
from toolkit.core.settings import Settings
from toolkit.data import DataSettings
from toolkit.engine.lr import LearningRateSettings
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.model.config import ActivationCheckpointing, AttentionKernel, ModelSettings
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.registry import DeclaredObjective
from toolkit.parallel.topology import ParallelSettings

_Declared = Annotated[InstanceOf[DeclaredObjective], PlainSerializer(DeclaredObjective.plain)]


class RunFolderSettings(Settings):
    """Folder and seed of the run, and its room on each machine."""

    dir: str = Field(min_length=1)
    """The run folder."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of weights, row order and every draw."""
    cache_gb: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Disk space on each machine for cached shards of corpora in object storage, in 10^9 bytes. Unset: 90 % of the free
    space at the start."""


class TrainSettings(OptimizerSettings):
    """The budget, the batch, and the optimizer's numbers."""

    steps: int | None = Field(None, gt=0)
    """Total updates; required if phases are fractions, otherwise the sum of the phases."""
    global_batch_rows: int = Field(1152, gt=0)
    """Rows per step over all ranks; the default is the paper's."""
    micro_batch_rows: int | None = Field(None, gt=0)
    """Rows per forward pass on one rank. Unset: the largest even share of a step that fits in GPU memory; on a CPU up
    to 12."""
    z_loss: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Coefficient of log(Z)^2 in the training loss, Z a target's softmax normalizer (PaLM: 1e-4). Reported losses
    exclude it."""
    compile: bool | None = None
    """Compile blocks and loss with torch.compile. Unset: on GPUs below ZeRO stage 3. On a CPU it pays off after about 5
    minutes."""
    attention_kernel: AttentionKernel | None = None
    """Attention on a GPU: FlashAttention-3, FlashAttention-4 (extra `flash4`), torch's FlashAttention-2, or plain torch
    (`sdpa`). Unset: the first of `flash3`, `flash2` and `sdpa` that runs."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """What blocks recompute in the backward pass to save memory: nothing, all but matrix products and flash attention
    (`selective`), or everything. Results do not change."""
    on_spike: Literal["tell", "skip", "stop"] = "tell"
    """What to do at a loss spike: `tell` logs it with its rows, `skip` also discards the update (needs `parallel.pp`
    1), `stop` ends the run with exit code 3."""
    spike_deviations: float = Field(6.0, gt=0, allow_inf_nan=False)
    """Threshold of a spike above the median of the previous 100 steps, in robust standard deviations (1.4826 times the
    median absolute deviation)."""


class InitSettings(Settings):
    """Source of the weights of a new run, instead of a random start."""

    key: ClassVar = "init.from"
    source: str = Field(alias="from", min_length=1)
    """Source of the first weights: an imported model, a checkpoint, or a run folder (its newest checkpoint)."""
    optimizer: Literal["keep", "reset"] = "reset"
    """Keep the optimizer moments of `init.from`, or start from zero."""
    grow: Literal["tile"] | None = None
    """Tile the weights of `init.from` into a larger `[model]`, as for ModernBERT-large. Unset: shapes must be equal."""

    @model_validator(mode="after")
    def _moments_do_not_grow(self) -> Self:
        if self.grow is not None and self.optimizer == "keep":
            raise ValueError(
                f'init.optimizer="keep", but init.grow="{self.grow}" makes other parameters. '
                'Set init.optimizer = "reset".'
            )
        return self


class ForkSettings(Settings):
    """Step at which a run takes over from another one that made the same steps up to there."""

    key: ClassVar = "fork.from"
    # As in `[init]`: a fork is one run with its parent up to there.
    optimizer: ClassVar[Literal["keep"]] = "keep"
    grow: ClassVar[None] = None
    source: str = Field(alias="from", min_length=1)
    """Checkpoint of another run that this one continues; needed until it has saved one itself."""
    step: int = Field(gt=0)
    """Step of the checkpoint `fork.from`."""


class LogSettings(Settings):
    """Logged steps: how often, and to where."""

    every: int = Field(10, gt=0)
    """Steps between logged steps."""
    tensorboard: bool = True
    """Also log to RUN_DIR/tensorboard."""
    wandb: bool | Annotated[str, Field(min_length=1)] = False
    """Also log to Weights & Biases (extra `wandb`); a string names the project."""
    peak_tflops: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Peak TFLOP/s of one device at this run's precision, for `mfu`. Unset: the data sheet's bf16 figure for common
    GPUs, else no `mfu`."""


class EvaluationSettings(Settings):
    """Validation losses; they need `data.validation`."""

    every: int | None = Field(None, gt=0)
    """Steps between evaluations, besides those before the first step and after each phase."""
    rows: int | None = Field(None, gt=0)
    """Rows of each validation corpus, from its start. Unset: all."""


class RunSettings(Settings):
    """One pretraining run."""

    run: RunFolderSettings
    """Folder and seed."""
    precision: Literal["fp32", "bf16"] | None = None
    """Compute dtype; bf16 keeps fp32 master weights. Unset: bf16 on GPUs, the faster one on CPUs, fp32 with ZeRO stage
    0. A resumed run keeps its dtype."""
    init: InitSettings | None = None
    """A table; unset: weights are drawn from the seed."""
    fork: ForkSettings | None = None
    """A table; unset: the run makes its first steps itself."""
    model: ModelSettings
    """Shape of the encoder."""
    data: DataSettings
    """Corpora and how rows are made from them."""
    objectives: dict[str, _Declared] = Field(default_factory=dict)
    """Objectives by name: `kind` (default: the name) and that kind's settings."""
    schedule: tuple[PhaseSettings, ...] = Field(strict=False)
    """Phases, in order."""
    train: TrainSettings = TrainSettings()
    """Budget, batch, optimizer."""
    lr: LearningRateSettings = LearningRateSettings()
    """Learning rate."""
    parallel: ParallelSettings = ParallelSettings()
    """Model parallelism."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When state is saved and what stays."""
    log: LogSettings = LogSettings()
    """Logging."""
    eval: EvaluationSettings = EvaluationSettings()
    """Validation."""

    @property
    def best_by(self) -> str | None:
        """The objective whose lowest validation loss keeps a checkpoint (`checkpoint.keep_best`), if any does."""
        best = self.checkpoint.keep_best
        return self.schedule[-1].name if best is True else best or None

    @property
    def first_weights(self) -> InitSettings | ForkSettings | None:
        """What names the checkpoint that the run starts from; None if weights are drawn."""
        return self.fork or self.init


class CompleteSettings(RunSettings):
    """Settings of a run that is started: those that run.toml has, with what its start decides filled in."""

    precision: Literal["fp32", "bf16"]
    """Compute dtype."""

    @classmethod
    def of(cls, settings: RunSettings, *, precision: Literal["fp32", "bf16"] | None) -> Self:
        """Settings that have a vocabulary size, with a precision."""
        return cls.model_validate(dict(settings) | {"precision": precision})

    @model_validator(mode="after")
    def _knows_its_vocabulary(self) -> Self:
        if self.model.vocab_size is None:
            raise ValueError("model.vocab_size is not known")
        return self
