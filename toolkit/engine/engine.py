"""Training steps and evaluation passes through DeepSpeed.

The loss is exact: N, the number of targets over all micro-batches and data-parallel ranks, is known before the first
forward pass. A micro-batch's loss is its sum of cross-entropies times gas x dp / N, which undoes the engine's two
divisions (by accumulation steps in backward, by ranks in the all-reduce), so gradient and reported loss are the mean
over target tokens whatever the micro-batch, the accumulation and the number of ranks. If a step has multiple
objectives, each has its own N and coefficient, which become weights of its targets. The loss is computed inside the
module's forward, because a head used outside silently loses its gradient under DeepSpeed's bf16 optimizer.

A non-finite value never reaches a checkpoint: the reduced loss is tested before the update; the gradient norm and the
engine's skipped steps after it, or before it at stage 0, where the engine would silently step on NaN.
"""

import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from toolkit.engine.ds_config import zero_stage
from toolkit.engine.initialization import count_once_, initialize_deepspeed
from toolkit.engine.optimizer import OptimizerSettings, build_optimizer
from toolkit.engine.ranks import Ranks
from toolkit.engine.step import LossTerm, MicroBatch, NonFiniteStep, StepResult
from toolkit.model.encoder import Encoder
from toolkit.model.head import Head
from toolkit.model.segments import to_device
from toolkit.parallel.stages import Stage

_NORM_PIECE = 1 << 22


_STEPS_TO_COLLECTION = 50
"""Steps between garbage collections, which DeepSpeed suppresses: the same on all ranks, so none waits for another."""


class Engine:
    """An encoder under DeepSpeed; raises `SettingsError` on every rank if DeepSpeed rejects the configuration.

    Args:
        module: the encoder, or this rank's part of it, with its initial weights; equal on all ranks that have it.
        kernels: names of the kernels that the module uses, for manifests.
    """

    _evaluated_together = 1
    """Number of micro-batches that an evaluation runs in one call."""

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
        # Objects that exist by now, mostly of imported modules, stay: collections skip them, and take a millisecond
        # instead of several steps of a small model. If the process froze objects itself, it is the one to undo it.
        self._has_frozen = gc.get_freeze_count() == 0
        if self._has_frozen:
            gc.freeze()
        # Every rank gets the same error: report it once.
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
        """Parameters of this rank, or shares of them, by Hugging Face name; same order on all ranks of a stage."""
        return dict(self.module.named_parameters())

    def train_step(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        terms: Sequence[LossTerm],
        learning_rate: float,
        flags: Callable[[], Sequence[bool]] = tuple,
    ) -> StepResult:
        """Run one step: every micro-batch of this rank, then the update.

        Args:
            micro_batches: this rank's, one per accumulation step.
            terms: loss terms of the step's objectives, in the order of their numbers.
            flags: returns this rank's flags, called once the gradients are there; all ranks get them with the loss.

        Raises:
            NonFiniteStep: the loss or the gradient is not finite; nothing of this step may be saved.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate
        self._expect(micro_batches)
        num_scaled = self._accumulation * self.ranks.data_parallel_size
        scales = [num_scaled / (term.targets or 1) * term.coefficient for term in terms]
        skipped_before = self.deepspeed.skipped_steps
        if len(terms) == 1:
            losses, sums_P = self._accumulate(micro_batches, scales[0]), torch.zeros(0)
        else:
            losses, sums_P = self._accumulate_mixed(micro_batches, scales)
        (loss_sum, *of_objectives), raised = self.ranks.sum_with_flags([losses.double().sum(), *sums_P], flags())
        loss_mean = loss_sum / num_scaled
        means = [part / (term.targets or 1) for part, term in zip(of_objectives, terms, strict=False)]
        means = means or [loss_mean / terms[0].coefficient]
        is_applied = all(mean <= term.largest_mean for mean, term in zip(means, terms, strict=True))
        if not math.isfinite(loss_mean):
            bad = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
            raise NonFiniteStep("the loss", tuple(bad))
        norm = self._update() if is_applied else self._pass_over()
        if not math.isfinite(norm) or self.deepspeed.skipped_steps > skipped_before:
            raise NonFiniteStep("the gradient norm", None)
        self._steps_here += 1
        if self._steps_here % _STEPS_TO_COLLECTION == 0:
            self.deepspeed.collect_python_gc()
        return StepResult(loss_mean, norm, tuple(means), is_applied, raised)

    @torch.no_grad()
    def loss_sum(self, micro_batches: Iterable[MicroBatch]) -> tuple[float, float]:
        """Weighted sum of cross-entropies, and sum of weights, over the micro-batches of all ranks.

        Computes no gradient. Targets without weights count as 1 each.
        All ranks need the same number of micro-batches, since ZeRO-3 gathers weights in every forward pass.
        """
        self.deepspeed.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        coming = iter(micro_batches)
        while batches := tuple(islice(coming, self._evaluated_together)):
            weight = torch.stack([batch.weight for batch in batches]).sum()
            total += torch.stack([self._evaluate(batches).double().sum(), weight])
        loss_sum, weight_sum = self.ranks.sum_with_flags(list(total), ())[0]
        return loss_sum, weight_sum

    @property
    def optimizer_step(self) -> int:
        """AdamW's own count of updates."""
        state = next(iter(self._adamw().state.values()), None)
        return int(state["step"]) if state else 0

    def reset_moments(self) -> None:
        """Set AdamW's moments and its count of updates to zero, between two steps."""
        for state in self._adamw().state.values():
            for name in ("step", "exp_avg", "exp_avg_sq"):
                state[name].zero_()

    def close(self) -> None:
        """Free DeepSpeed's resources; needed if one process builds more than one engine."""
        from deepspeed.utils import groups

        self.deepspeed.destroy()
        if self._has_frozen:
            gc.unfreeze()
        # Otherwise the next engine of this process would reduce over this one's groups.
        groups.mpu = None

    def _expect(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Tell DeepSpeed the step's number of micro-batches, if it has changed between phases."""
        number = len(micro_batches)
        if number == self._accumulation:
            return
        self._accumulation = number
        engine = self.deepspeed
        engine.set_train_batch_size(engine.train_micro_batch_size_per_gpu() * number * self.ranks.data_parallel_size)
        # It counts micro-batches over the whole run, and expects the end of a step at multiples of this number.
        engine.micro_steps = 0
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            engine.optimizer.gradient_accumulation_steps = number

    def _accumulate_mixed(
        self, micro_batches: Sequence[MicroBatch], scales: Sequence[float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`_accumulate` with a scale per objective; also returns the sums of their cross-entropies, 0 if unknown."""
        scale_P = to_device(np.array(scales, dtype=np.float32), self.ranks.device)
        head: Head | None = getattr(self.module, "lm_head", None)
        kept: list[torch.Tensor] = []
        if head is not None:
            head.losses = kept
        try:
            losses = self._accumulate([batch.weighted(scale_P) for batch in micro_batches], 1.0)
        finally:
            if head is not None:
                head.losses = None
        sums_P = torch.zeros(len(scales), dtype=torch.float64, device=self.ranks.device)
        for batch, losses_N in zip(micro_batches, kept, strict=False):
            own_N = losses_N if batch.weights_N is None else losses_N * batch.weights_N
            assert batch.objective_N is not None
            sums_P.index_add_(0, batch.objective_N, own_N.double())
        return losses, sums_P

    def _accumulate(self, micro_batches: Sequence[MicroBatch], scale: float) -> torch.Tensor:
        """Accumulate gradients over all micro-batches; return their losses, (micro-batches,)."""
        self.deepspeed.train()
        losses = []
        for number, batch in enumerate(micro_batches):
            loss = self._forward(batch, scale)
            self.deepspeed.backward(loss)
            losses.append(loss.detach())
            if number < len(micro_batches) - 1:
                self.deepspeed.step()
        return torch.stack(losses)

    def _evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Losses of micro-batches without gradients, (micro-batches,); empty if unknown."""
        return torch.stack([self._forward(batch, 1.0) for batch in micro_batches])

    def _forward(self, batch: MicroBatch, scale: float) -> torch.Tensor:
        loss: torch.Tensor = self.deepspeed(
            batch.input_ids_BS,
            batch.layout,
            batch.attention,
            positions_N=batch.positions_N,
            labels_N=batch.labels_N,
            scale=scale,
            weights_N=batch.weights_N,
        )
        return loss

    def _update(self) -> float:
        """Run the optimizer's step; return the gradient norm before clipping."""
        # Stage 0 in fp32 reports no norm and would step on a NaN gradient: check before the step.
        norm = gradient_norm(self.module) if self.zero_stage == 0 else None
        if norm is None or math.isfinite(norm):
            self.deepspeed.step()
        return float(self.deepspeed.get_global_grad_norm()) if norm is None else norm

    def _pass_over(self) -> float:
        """End a step without changing weights or moments; return the gradient norm before clipping.

        DeepSpeed counts the step and frees the gradients as usual at its stage; AdamW does nothing.
        """
        adamw = self._adamw()
        adamw.step = lambda *arguments, **named: None  # type: ignore[assignment,method-assign]
        try:
            return self._update()
        finally:
            del adamw.step

    def _adamw(self) -> torch.optim.Optimizer:
        """The optimizer inside DeepSpeed's; at stage 0 they are the same."""
        adamw: torch.optim.Optimizer = getattr(self.deepspeed.optimizer, "optimizer", self.deepspeed.optimizer)
        return adamw


def gradient_norm(module: torch.nn.Module) -> float:
    """Global gradient norm, summed in fp64; in pieces, since an fp64 copy is twice as large as a gradient."""
    squares = [
        piece.double().square().sum()
        for parameter in module.parameters()
        if parameter.grad is not None
        for piece in torch.split(parameter.grad.detach().flatten(), _NORM_PIECE)
    ]
    return math.sqrt(float(torch.stack(squares).sum()))
