"""Training steps and evaluation passes through DeepSpeed.

The loss is exact: N, the number of targets over all micro-batches and data-parallel ranks, is known before the first
forward pass. A micro-batch's loss is its sum of cross-entropies times gas x dp / N, which undoes the engine's two
divisions (by accumulation steps in backward, by ranks in the all-reduce), so gradient and reported loss are the mean
over target tokens whatever the micro-batch, the accumulation and the number of ranks. It is computed inside the
module's forward, because a head used outside loses its gradient under DeepSpeed's bf16 optimizer without a word.

A value that is not finite never reaches a checkpoint: the reduced loss is tested before the update; the gradient norm
and the engine's skipped steps after it, or before it at stage 0, where the engine would step on NaN silently.
"""

import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from toolkit.core.types import AttentionKind
from toolkit.engine.ds_config import zero_stage
from toolkit.engine.initialization import count_once_, initialize_deepspeed
from toolkit.engine.optimizer import OptimizerSettings, build_optimizer
from toolkit.engine.ranks import Ranks
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder
from toolkit.model.segments import SegmentLayout
from toolkit.parallel.stages import Stage

_NORM_PIECE = 1 << 22


@dataclass(frozen=True)
class MicroBatch:
    """Inputs (B, S) and targets (N,) of one forward pass on one rank, int64, and the layout of the segments."""

    input_ids_BS: torch.Tensor
    layout: SegmentLayout
    positions_N: torch.Tensor
    labels_N: torch.Tensor


_STEPS_TO_COLLECTION = 50
"""Between garbage collections, which DeepSpeed holds back: the same steps on all ranks, so that none waits for another.
"""


@dataclass(frozen=True)
class StepResult:
    """Exact token mean of the loss before the update, and the global gradient norm before clipping."""

    loss: float
    grad_norm: float
    is_applied: bool = True
    """Weights and moments were updated."""
    flags: tuple[bool, ...] = ()
    """Of each flag whether any rank raised it."""


class NonFiniteStep(Exception):
    """The loss or the gradient of a step is not finite.

    `micro_batches` are those of this rank with a non-finite loss, possibly none; None if unknown.
    """

    def __init__(self, what: str, micro_batches: tuple[int, ...] | None) -> None:
        super().__init__(what)
        self.what = what
        self.micro_batches = micro_batches


class Engine:
    """An encoder under DeepSpeed; a configuration that DeepSpeed rejects is a SettingsError on every rank.

    Args:
        module: the encoder, or this rank's part of it, with its initial weights; equal on all ranks that have it.
        kernels: names of what the module computes with, for manifests.
    """

    def __init__(
        self,
        module: Encoder | Stage,
        *,
        config: dict[str, Any],
        optimizer: OptimizerSettings,
        ranks: Ranks,
        kernels: Mapping[str, str] | None = None,
    ) -> None:
        self.ranks = ranks
        self.kernels = dict(kernels or {})
        self.module = module
        self.zero_stage = zero_stage(config)
        self._accumulation = int(config["gradient_accumulation_steps"])
        self._steps_here = 0
        # What there is by now, imported modules most of all, stays: collections pass over it, and last a millisecond
        # where they took several steps of a small model. Where the process did so itself, it is the one to undo it.
        self._has_frozen = gc.get_freeze_count() == 0
        if self._has_frozen:
            gc.freeze()
        # Every rank meets the same error: told once.
        with ranks.together():
            self.deepspeed = self._initialize(config, optimizer)
        if self._has_frozen:
            gc.freeze()

    def _initialize(self, config: dict[str, Any], optimizer: OptimizerSettings) -> Any:
        ranks, mpu = self.ranks, None
        if ranks.topology.tp > 1:
            count_once_(self.module, tp_rank=ranks.topology.tp_rank)
            mpu = ranks.groups
        return initialize_deepspeed(self.module, build_optimizer(self.module, optimizer), config, ranks=ranks, mpu=mpu)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Hugging Face names of all parameters of the model, in the same order on all ranks."""
        return tuple(self.named_parameters())

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters of this rank, or shares of them, by Hugging Face name; in one order on all ranks of a stage."""
        return dict(self.module.named_parameters())

    def train_step(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        attention: AttentionKind,
        num_targets: int,
        learning_rate: float,
        largest_loss: float = math.inf,
        flags: Callable[[], Sequence[bool]] = tuple,
    ) -> StepResult:
        """Run one step: every micro-batch of this rank, then the update.

        Args:
            micro_batches: of this rank, one per accumulation step.
            num_targets: N over all micro-batches and ranks; may be 0, which gives loss 0.
            largest_loss: with which the update is applied; not looked at under a pipeline, where it comes first.
            flags: of this rank, asked for when the gradients are there; all ranks learn of them with the loss.

        Raises:
            NonFiniteStep: the loss or the gradient is not finite; nothing of this step may be saved.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate
        self._expect(micro_batches)
        scale = self._accumulation * self.ranks.data_parallel_size / max(num_targets, 1)
        skipped_before = self.deepspeed.skipped_steps
        losses = self._accumulate(micro_batches, attention, scale)
        num_scaled = self._accumulation * self.ranks.data_parallel_size
        loss_sum, raised = self.ranks.sum_with_flags(losses.double().sum(), flags())
        loss_mean = loss_sum / num_scaled
        is_applied = loss_mean <= largest_loss
        if not math.isfinite(loss_mean):
            bad = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
            raise NonFiniteStep("the loss", tuple(bad))
        norm = self._update() if is_applied else self._pass_over()
        if not math.isfinite(norm) or self.deepspeed.skipped_steps > skipped_before:
            raise NonFiniteStep("the gradient norm", None)
        self._steps_here += 1
        if self._steps_here % _STEPS_TO_COLLECTION == 0:
            self.deepspeed.collect_python_gc()
        return StepResult(loss=loss_mean, grad_norm=norm, is_applied=is_applied, flags=raised)

    @torch.no_grad()
    def loss_sum(self, micro_batches: Iterable[MicroBatch], *, attention: AttentionKind) -> float:
        """Sum of cross-entropies over the micro-batches of all ranks, without a gradient.

        All ranks need the same number of micro-batches, since ZeRO-3 gathers weights in every forward pass.
        """
        self.deepspeed.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for batch in micro_batches:
            total += self._forward(batch, attention, 1.0)
        return self.ranks.sum_on_device(total)

    @property
    def optimizer_step(self) -> int:
        """AdamW's own count of updates; after at least one."""
        state = next(iter(self._adamw().state.values()))
        return int(state["step"])

    def set_rope(self, settings: ModelSettings) -> None:
        """Rotate as these settings say from the next forward pass on; the rest of them is that of the model."""
        self.module.set_rope(settings)

    def reset_moments(self) -> None:
        """Set AdamW's moments and its count of updates to zero, between two steps."""
        for state in self._adamw().state.values():
            for name in ("step", "exp_avg", "exp_avg_sq"):
                state[name].zero_()

    def close(self) -> None:
        """Free what DeepSpeed holds; needed where one process builds several engines."""
        from deepspeed.utils import groups

        self.deepspeed.destroy()
        if self._has_frozen:
            gc.unfreeze()
        # Else the next engine of this process would reduce over this one's groups.
        groups.mpu = None

    def _expect(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Tell DeepSpeed how many micro-batches the step has, where that changes between two phases."""
        number = len(micro_batches)
        if number == self._accumulation:
            return
        self._accumulation = number
        engine = self.deepspeed
        engine.set_train_batch_size(engine.train_micro_batch_size_per_gpu() * number * self.ranks.data_parallel_size)
        # It counts micro-batches over the whole run, and looks for the end of a step at multiples of this number.
        engine.micro_steps = 0
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            engine.optimizer.gradient_accumulation_steps = number

    def _accumulate(self, micro_batches: Sequence[MicroBatch], attention: AttentionKind, scale: float) -> torch.Tensor:
        """Gradients of all micro-batches; returns their losses, (micro-batches,)."""
        self.deepspeed.train()
        losses = []
        for number, batch in enumerate(micro_batches):
            loss = self._forward(batch, attention, scale)
            self.deepspeed.backward(loss)
            losses.append(loss.detach())
            if number < len(micro_batches) - 1:
                self.deepspeed.step()
        return torch.stack(losses)

    def _forward(self, batch: MicroBatch, attention: AttentionKind, scale: float) -> torch.Tensor:
        loss: torch.Tensor = self.deepspeed(
            batch.input_ids_BS,
            batch.layout,
            attention,
            positions_N=batch.positions_N,
            labels_N=batch.labels_N,
            scale=scale,
        )
        return loss

    def _update(self) -> float:
        """The optimizer's step; returns the gradient norm before clipping."""
        # Stage 0 in fp32 reports no norm and would step on a NaN gradient: look before the step.
        norm = gradient_norm(self.module) if self.zero_stage == 0 else None
        if norm is None or math.isfinite(norm):
            self.deepspeed.step()
        return float(self.deepspeed.get_global_grad_norm()) if norm is None else norm

    def _pass_over(self) -> float:
        """The end of a step that changes neither weights nor moments; returns the gradient norm before clipping.

        DeepSpeed counts the step and frees the gradients as ever, in whatever way its stage does; AdamW does nothing.
        """
        adamw = self._adamw()
        adamw.step = lambda *arguments, **named: None  # type: ignore[assignment,method-assign]
        try:
            return self._update()
        finally:
            del adamw.step

    def _adamw(self) -> torch.optim.Optimizer:
        """The optimizer in DeepSpeed's, which at stage 0 is the same."""
        adamw: torch.optim.Optimizer = getattr(self.deepspeed.optimizer, "optimizer", self.deepspeed.optimizer)
        return adamw


def gradient_norm(module: torch.nn.Module) -> float:
    """Norm of all gradients together, summed in fp64; in pieces, since an fp64 copy is twice as large as a gradient."""
    squares = [
        piece.double().square().sum()
        for parameter in module.parameters()
        if parameter.grad is not None
        for piece in torch.split(parameter.grad.detach().flatten(), _NORM_PIECE)
    ]
    return math.sqrt(float(torch.stack(squares).sum()))
