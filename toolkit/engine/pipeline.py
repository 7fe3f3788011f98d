"""Training steps and evaluation passes through DeepSpeed's pipeline.

Each rank gives DeepSpeed one layer per stage, of which only its own is real, so that we decide the split. DeepSpeed
runs the schedule (1F1B: each stage runs the forward passes in the order of the micro-batches), sends hidden states and
their gradients, reduces gradients and updates, all in one call. So a non-finite value is found only after the update;
nothing of that step is saved, as everywhere.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from toolkit.engine.engine import Engine
from toolkit.engine.initialization import count_once_, initialize_deepspeed
from toolkit.engine.optimizer import OptimizerSettings, build_optimizer
from toolkit.engine.ranks import Ranks
from toolkit.engine.step import MicroBatch
from toolkit.model.encoder import ForwardContext
from toolkit.parallel.stages import Stage
from toolkit.parallel.topology import Topology


class PipelinedEngine(Engine):
    """A stage of an encoder under DeepSpeed's pipeline, with its initial weights, at ZeRO stage 1.

    `names` are the Hugging Face names of all parameters of the model, in the same order on all ranks.
    """

    _evaluated_together = 32
    """Number of micro-batches that go through the pipeline together: enough that filling it costs little."""

    def __init__(
        self,
        stage: Stage,
        *,
        names: Sequence[str],
        config: dict[str, Any],
        optimizer: OptimizerSettings,
        ranks: Ranks,
        kernels: Mapping[str, str] | None = None,
    ) -> None:
        self._stage, self._names, self._shape = stage, tuple(names), torch.Size()
        super().__init__(stage, config=config, optimizer=optimizer, ranks=ranks, kernels=kernels)

    def _initialize(self, config: dict[str, Any], optimizer: OptimizerSettings) -> Any:
        ranks, stage = self.ranks, self._stage
        tied_group = ranks.groups.vocabulary if stage.settings.tie_word_embeddings else None
        # DeepSpeed would switch this off itself, with a warning from each rank.
        config = config | {"zero_optimization": config["zero_optimization"] | {"overlap_comm": False}}
        # It prints how it split the layers.
        with redirect_stdout(io.StringIO()):
            pipeline = _Pipeline(stage, ranks.topology, tied_group)
        adamw = build_optimizer(stage, optimizer, apart=self._apart())
        return initialize_deepspeed(pipeline, adamw, config, ranks=ranks, mpu=None)

    def _apart(self) -> nn.Parameter | None:
        """The parameter of this stage that gets its own optimizer group, if weights are tied.

        AdamW's rounding depends on an element's position in its group (on a CPU, the last few are not vectorized): in
        groups of different sizes, two copies of one weight would drift apart. A stage without a copy sets another
        parameter apart: DeepSpeed sums the norm of each group over the stages, which all need equally many groups.
        """
        stage = self._stage
        if not stage.settings.tie_word_embeddings:
            return None
        return stage.tied_weight if stage.is_first or stage.is_last else next(stage.parameters())

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """See `Engine.parameter_names`."""
        return self._names

    def _accumulate(self, micro_batches: Sequence[MicroBatch], scale: float) -> torch.Tensor:
        """Run the whole step; return the losses of all micro-batches, empty if unknown."""
        self.deepspeed.train_batch(self._fed(micro_batches, scale))
        return self._losses()

    def _evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        self.deepspeed.eval_batch(self._fed(micro_batches, 1.0), num_micro_batches=len(micro_batches))
        return self._losses()

    def _update(self) -> float:
        """The gradient norm before clipping; the optimizer has stepped."""
        return float(self.deepspeed.get_global_grad_norm())

    def _losses(self) -> torch.Tensor:
        """Losses of the micro-batches that the pipeline ran last; empty if unknown."""
        losses: list[torch.Tensor] = self.deepspeed.fwd_outputs
        return torch.stack(losses) if losses else torch.zeros(0, device=self.ranks.device)

    def _fed(self, micro_batches: Sequence[MicroBatch], scale: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Items that DeepSpeed reads for each micro-batch, at both ends of the pipeline; the stage gets the rest."""
        settings = self._stage.settings
        shape = micro_batches[0].input_ids_BS.shape
        if shape != self._shape:
            # Stages tell one another the shape of their activations only once.
            self.deepspeed.reset_activation_shape()
            self._shape = shape
        self._stage.expect(
            (
                ForwardContext.by_layer_type(settings, batch.layout, batch.attention, batch.positions_N),
                batch.labels_N,
                batch.weights_N,
            )
            for batch in micro_batches
        )
        scale_tensor = torch.tensor(scale, device=self.ranks.device)
        return ((batch.input_ids_BS, scale_tensor) for batch in micro_batches)


class _Pipeline(PipelineModule):
    """One layer per stage; we name the tied weight, of which two stages have a copy.

    DeepSpeed would tie whole layers, not parts of them.
    """

    def __init__(self, stage: Stage, topology: Topology, tied_group: dist.ProcessGroup | None) -> None:
        super().__init__(
            layers=[stage if number == topology.stage else nn.Identity() for number in range(topology.pp)],
            topology=PipeModelDataParallelTopology(num_pp=topology.pp, num_mp=topology.tp, num_dp=topology.dp),
            # The loss itself is computed in the last stage: outside of forward, the head would lose its gradient
            # under DeepSpeed's bf16 optimizer.
            loss_fn=torch.mul,
            partition_method="uniform",
        )
        self._tied = [] if tied_group is None else [(stage.tied_weight, tied_group)]
        copy = stage.tied_weight if self._tied and not stage.is_first else None
        count_once_(stage, tp_rank=topology.tp_rank, copy=copy)

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
        """Weights that other stages have a copy of, each with the ranks over which its gradient is summed."""
        return self._tied
