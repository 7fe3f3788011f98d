"""The gradient of every parameter, cut in ways over micro-batches, ranks, stages and ZeRO stages, against plain torch.

With clipping off, beta1 = 0 and the learning rate 0, the first moment after one step is the gradient that the optimizer
saw, and a checkpoint holds it whole, by parameter name, in fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

from tests.support.kernels import plain_flash, traced_flash
from toolkit.core.types import AttentionKind
from toolkit.engine.ds_config import resolve_ds_config
from toolkit.engine.engine import Engine
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.engine.optimizer_state import collect
from toolkit.engine.pipeline import PipelinedEngine
from toolkit.engine.ranks import Ranks, join_ranks
from toolkit.engine.step import LossTerm, MicroBatch
from toolkit.model import Encoder
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.flash import FlashKernel
from toolkit.model.layers import Products, joined_products, separate_products
from toolkit.model.segments import MixedRows, SegmentLayout
from toolkit.parallel.division import stage_blocks
from toolkit.parallel.stages import Stage
from toolkit.parallel.tensor_parallel import share_weights_
from toolkit.parallel.topology import ParallelSettings, batch_plan
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder
from toolkit.testing.tolerances import gradient_tolerance

# Whole runs on several ranks.
pytestmark = pytest.mark.costs(10)

FloatArray = npt.NDArray[np.float32]
_ROWS, _COLUMNS = 8, 64
_CAUSAL = (1, 2, 6, 7)
_ALONE = ParallelSettings(tp=1, pp=1)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_LAYOUTS = (("zero0", "fp32"), *((f"zero{stage}", precision) for stage in (1, 2, 3) for precision in _DTYPES))


@dataclass(frozen=True)
class OneStep:
    """One step of a tiny model on the rows of `_rows`; gradients by parameter name, from all ranks' shares."""

    layout: tuple[str, str]
    micro_batch_rows: int
    kind: AttentionKind
    is_tied: bool = False
    decays_all: bool = True
    parallel: ParallelSettings = _ALONE
    model: str = "plain"
    num_blocks: int = 2
    first_row: int = 0
    """Earlier ones have no target."""
    z_loss: float = 0.0
    products: Products = separate_products
    kernel: FlashKernel | None = None
    is_mixed: bool = False
    """Rows of `_CAUSAL` are of a causal objective, others of `kind`, and targets carry weights."""
    is_compiled: bool = False
    """Traced as for a GPU, without code of its own; a break of a graph is an error."""

    def __call__(self) -> tuple[float, float, dict[str, FloatArray]]:
        if not self.is_compiled:
            return self._step()
        torch._dynamo.reset()
        counters.clear()
        with mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
            result = self._step()
        assert counters["stats"]["unique_graphs"] > 0
        assert self.is_mixed or not counters["graph_break"]
        return result

    def _step(self) -> tuple[float, float, dict[str, FloatArray]]:
        engine, batches, terms = self.prepared()
        # Traced once more for evaluation, which is of one objective at a time in a run.
        is_evaluated = not (self.is_compiled and self.is_mixed)
        evaluated = engine.loss_sum(batches) if is_evaluated else None
        result = engine.train_step(batches, terms=terms, learning_rate=0.0)
        gradients = {state.name: state.exp_avg.numpy() for state in collect(engine, is_mine=lambda name: True)}
        engine.close()
        by_hand = sum(term.coefficient * mean for term, mean in zip(terms, result.means, strict=True))
        assert by_hand == pytest.approx(result.loss, rel=1e-6)
        if is_evaluated:
            sums = sum(term.targets * mean for term, mean in zip(terms, result.means, strict=True))
            assert evaluated == pytest.approx((sums, sum(term.targets for term in terms)), rel=1e-6)
        return result.loss, result.grad_norm, gradients

    def prepared(self) -> tuple[Engine, list[MicroBatch], list[LossTerm]]:
        """This rank's engine and micro-batches, and the terms of the loss."""
        ranks = join_ranks(self.parallel)
        stage, precision = self.layout
        plan = batch_plan(_ROWS, self.micro_batch_rows, data_parallel=ranks.data_parallel_size)
        zero = {"stage": int(stage[-1])} | ({"stage3_param_persistence_threshold": 0} if stage == "zero3" else {})
        config = resolve_ds_config(
            {"zero_optimization": zero},
            batch=plan,
            grad_clip=0.0,
            precision=precision,
            source=stage,
            largest_parameter=2**20,
        )
        settings = OptimizerSettings(beta1=0.0, decay_norms_and_embeddings=self.decays_all)
        batches = [self.batch(rows.tolist()) for rows in plan.row_numbers(ranks.data_rank)]
        return self._engine(config, settings, ranks), batches, self.terms()

    def batch(self, numbers: Sequence[int]) -> MicroBatch:
        """Those rows; causal ones first in a mixture."""
        if not self.is_mixed:
            return _micro_batch(numbers, self.first_row, self.kind)
        causal, others = ([row for row in numbers if (row in _CAUSAL) == wanted] for wanted in (True, False))
        batch = _micro_batch([*causal, *others], self.first_row, self.kind if others else AttentionKind.CAUSAL)
        rows = batch.positions_N // _COLUMNS
        mixed = replace(
            batch,
            weights_N=1 / (0.2 + 0.1 * torch.tensor([*causal, *others])[rows]),
            objective_N=(rows >= len(causal)).long(),
        )
        if not (causal and others):
            return mixed
        parts = (torch.stack([_rows()[row][1] for row in part]) for part in (causal, others))
        return replace(mixed, attention=MixedRows(*map(SegmentLayout.from_segments, parts)))

    def terms(self) -> list[LossTerm]:
        """Of the objectives of the step."""
        batch = self.batch(range(_ROWS))
        if batch.objective_N is None:
            return [LossTerm(len(batch.labels_N))]
        sums = torch.zeros(2).index_add(0, batch.objective_N, batch.weights_N).tolist()
        return [LossTerm(weight, coefficient) for weight, coefficient in zip(sums, (0.3 * 1.5, 0.7), strict=True)]

    def _engine(self, config: dict[str, Any], optimizer: OptimizerSettings, ranks: Ranks) -> Engine:
        encoder = self.encoder()
        encoder.lm_head.z_loss = self.z_loss
        names = [name for name, _ in encoder.named_parameters()]
        if self.parallel.tp > 1:
            share_weights_(encoder, ranks.groups.tensor)
        Kernels(self.kernel, self.products, ()).apply_(encoder)
        if self.is_compiled:
            compile_blocks_(encoder)
        if self.parallel.pp == 1:
            return Engine(encoder, config=config, optimizer=optimizer, ranks=ranks)
        blocks = stage_blocks(encoder.settings, self.parallel, targets_per_position=0.0)
        stage = Stage(encoder, blocks[ranks.topology.stage])
        return PipelinedEngine(stage, names=names, config=config, optimizer=optimizer, ranks=ranks)

    def encoder(self) -> Encoder:
        """The model, equal on all ranks."""
        changes = {"initializer_range": 0.02, "num_hidden_layers": self.num_blocks} | _MODELS[self.model]
        return tiny_encoder(seed=5, **({"tie_word_embeddings": self.is_tied} | changes))


_MODELS = {"plain": {}, "a key-value head for each query head": {"num_key_value_heads": 4}} | MODEL_OPTIONS


@cache
def _rows() -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(ids (S,), segments (S,), target columns, labels) of each row; the number of targets differs from row to row."""
    generator = np.random.default_rng(3)
    rows = []
    for number in range(_ROWS):
        ids = torch.from_numpy(generator.zipf(1.3, _COLUMNS) % 97)
        segments = torch.ones(_COLUMNS, dtype=torch.int64)
        segments[20 + 3 * number :] = 2
        segments[60:] = 0
        columns = torch.from_numpy(np.flatnonzero(generator.random(60) < 0.1 + 0.1 * number))
        rows.append((ids.index_fill(0, columns, 2), segments, columns, ids[columns]))
    return rows


def _micro_batch(numbers: object, first_row: int, kind: AttentionKind) -> MicroBatch:
    chosen = [(number, _rows()[number]) for number in np.asarray(numbers).tolist()]
    none = torch.zeros(0, dtype=torch.int64)
    chosen_rows = [row if number >= first_row else (*row[:2], none, none) for number, row in chosen]
    ids, segments, columns, labels = zip(*chosen_rows, strict=True)
    positions = [row * _COLUMNS + part for row, part in enumerate(columns)]
    positions_N = torch.cat(positions)
    layout = SegmentLayout.from_segments(torch.stack(segments), positions_N=positions_N.numpy())
    return MicroBatch(torch.stack(ids), layout, kind, positions_N, torch.cat(labels))


def expected_step(case: OneStep) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by one fp32 pass over all rows, on the weights that the run has; in a mixture by one for each
    objective, weighted by hand.
    """
    encoder = case.encoder().to(_DTYPES[case.layout[1]]).float()
    passes = [(range(_ROWS), case.kind, 1.0)]
    if case.is_mixed:
        others = [row for row in range(_ROWS) if row not in _CAUSAL]
        passes = [(_CAUSAL, AttentionKind.CAUSAL, 0.3 * 1.5), (others, case.kind, 0.7)]
    whole = 0.0
    for rows, kind, coefficient in passes:
        batch = _micro_batch(rows, case.first_row, kind)
        row_N = torch.tensor(list(rows))[batch.positions_N // _COLUMNS]
        weights_N = 1 / (0.2 + 0.1 * row_N) if case.is_mixed else torch.ones(len(row_N))
        logits_NV = encoder.logits(batch.input_ids_BS, batch.layout, kind, positions_N=batch.positions_N)
        losses_N, z_N = cross_entropy(logits_NV, batch.labels_N, reduction="none"), logits_NV.logsumexp(dim=-1) ** 2
        loss, z_loss = ((part_N * weights_N).sum() / weights_N.sum() for part_N in (losses_N, case.z_loss * z_N))
        (coefficient * (loss + z_loss)).backward()
        whole += coefficient * loss.item()
    return whole, {name: parameter.grad for name, parameter in encoder.named_parameters()}


def _cases(world_size: int) -> list[OneStep]:
    """Each layout with long and with short micro-batches on either number of ranks, and with neither on both."""
    rows = ((1, 4), (4, 1))[world_size - 1]
    plain = [OneStep(layout, rows[number % 2], AttentionKind.CAUSAL) for number, layout in enumerate(_LAYOUTS)]
    others = [OneStep(layout, 2, AttentionKind.BIDIRECTIONAL, is_tied=True, decays_all=False) for layout in _LAYOUTS]
    layouts = _LAYOUTS[world_size - 1 :: 2]
    windows = [
        OneStep(layout, 2, AttentionKind.CAUSAL, model=("modernbert", "ultrabert")[number % 2], num_blocks=3)
        for number, layout in enumerate(layouts)
    ]
    return plain + others + windows


def _tensor_parallel_cases() -> list[OneStep]:
    """Any two of stage, precision and whether embeddings are tied; and what a model may have beside."""
    tp2 = ParallelSettings(tp=2)
    cases = []
    for stage, tied_precision in (("zero1", "bf16"), ("zero2", "fp32"), ("zero3", "bf16")):
        plain_precision = "fp32" if tied_precision == "bf16" else "bf16"
        cases.append(OneStep((stage, plain_precision), 2, AttentionKind.CAUSAL, parallel=tp2))
        cases.append(OneStep((stage, tied_precision), 4, AttentionKind.BIDIRECTIONAL, True, False, tp2))
    # The plain model is in the others, and one way to scale angles says as much of ranks as another.
    models = [name for name in _MODELS if name not in ("plain", "linear angles")]
    others = [OneStep(("zero1", "fp32"), 2, AttentionKind.BIDIRECTIONAL, parallel=tp2, model=name) for name in models]
    others += [OneStep(("zero3", "bf16"), 2, AttentionKind.CAUSAL, parallel=tp2, model="modernbert", num_blocks=3)]
    return cases + others


def _pipeline_cases(parallel: ParallelSettings) -> list[OneStep]:
    """Both kinds, tied and not, fp32 and bf16; micro-batches without any target; blocks that stages do not divide."""
    fp32, bf16, heads = ("zero1", "fp32"), ("zero1", "bf16"), "a key-value head for each query head"
    blocks = parallel.pp + 1
    return [
        OneStep(fp32, 2, AttentionKind.CAUSAL, parallel=parallel, model="head norms, wide heads", num_blocks=blocks),
        OneStep(fp32, 1, AttentionKind.BIDIRECTIONAL, True, False, parallel, num_blocks=blocks, first_row=4),
        OneStep(bf16, 2, AttentionKind.CAUSAL, parallel=parallel, model=heads, num_blocks=blocks),
        OneStep(bf16, 1, AttentionKind.BIDIRECTIONAL, True, False, parallel, num_blocks=blocks),
        OneStep(fp32, 2, AttentionKind.BIDIRECTIONAL, parallel=parallel, model="modernbert", num_blocks=blocks),
        OneStep(fp32, 2, AttentionKind.CAUSAL, parallel=parallel, model="ultrabert", num_blocks=blocks),
    ]


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_gradient_is_that_of_one_fp32_pass(world_size: int) -> None:
    _check(_cases(world_size), world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_gradient_under_tensor_parallelism(world_size: int) -> None:
    """97 tokens over two ranks: the second share of embedding and head ends in a row that is no token's."""
    _check(_tensor_parallel_cases() if world_size == 2 else _tensor_parallel_cases()[::3], world_size)


@pytest.mark.parametrize(
    ("world_size", "parallel", "chosen"),
    [
        (2, ParallelSettings(pp=2), (0, 1, 2, 3, 4)),
        (4, ParallelSettings(pp=2), (1, 2)),
        (4, ParallelSettings(tp=2, pp=2), (0, 3, 4)),
        (4, ParallelSettings(pp=4), (1, 2)),
    ],
    ids=["pp2", "pp2 dp2", "pp2 tp2", "pp4"],
)
def test_every_gradient_under_pipeline_parallelism(
    world_size: int, parallel: ParallelSettings, chosen: tuple[int, ...]
) -> None:
    """Each layout in processes of its own, since every pipeline engine leaves six process groups behind.

    On four ranks two cases of the first family, which are of both kinds and precisions.
    """
    cases = _pipeline_cases(parallel)
    _check([cases[number] for number in chosen], world_size)


@pytest.mark.parametrize(
    ("world_size", "parallel", "stage"),
    [
        (1, _ALONE, "zero1"),
        (2, _ALONE, "zero3"),
        (2, ParallelSettings(tp=2), "zero2"),
        (2, ParallelSettings(pp=2), "zero1"),
    ],
    ids=["alone", "dp2", "tp2", "pp2"],
)
def test_every_gradient_with_a_z_loss(world_size: int, parallel: ParallelSettings, stage: str) -> None:
    """With a share of the vocabulary that ends in a row of no token, and tied weights."""
    cases = [
        OneStep((stage, "fp32"), 2, AttentionKind.CAUSAL, is_tied, parallel=parallel, z_loss=0.05)
        for is_tied in (False, True)
    ]
    _, with_z = expected_step(cases[0])
    _, without = expected_step(replace(cases[0], z_loss=0.0))
    head = "lm_head.weight"
    assert (with_z[head] - without[head]).norm() > 0.1 * without[head].norm()
    _check(cases, world_size)


@pytest.mark.parametrize(
    "parallel", [_ALONE, ParallelSettings(tp=2), ParallelSettings(pp=2)], ids=["dp2", "tp2", "pp2"]
)
def test_every_gradient_of_joined_products(parallel: ParallelSettings) -> None:
    """Biases, key-value heads that are shared and not, shares of the weights; last, in compiled blocks.

    Those of whole models are compiled among the mixtures, and tracing takes longer than all the rest.
    """
    cases = [
        OneStep(("zero1", precision), 2, AttentionKind.BIDIRECTIONAL, parallel=parallel, model=name,
                products=joined_products)
        for name, precision in (("plain", "bf16"), ("biases", "fp32"), ("head norms, wide heads", "fp32"),
                                ("modernbert", "fp32"))
    ]  # fmt: skip
    compiled = [] if parallel == _ALONE else [replace(cases[1], kernel=traced_flash, is_compiled=True)]
    _check([*cases, *compiled], 2)


@pytest.mark.parametrize(
    ("parallel", "stage"),
    [(_ALONE, "zero3"), (ParallelSettings(tp=2), "zero1"), (ParallelSettings(pp=2), "zero1")],
    ids=["dp2", "tp2", "pp2"],
)
def test_every_gradient_of_queries_at_targets_alone(parallel: ParallelSettings, stage: str) -> None:
    """With a flash kernel's stand-in; micro-batches without any target, segments without one, padding."""
    cases = [
        OneStep((stage, "fp32"), 2, AttentionKind.BIDIRECTIONAL, parallel=parallel, model=name, first_row=4,
                kernel=plain_flash)
        for name in ("biases", "head norms, wide heads", "modernbert", "ultrabert")
    ]  # fmt: skip
    _check(cases, 2)


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        (1, _ALONE),
        (2, _ALONE),
        (2, ParallelSettings(tp=2)),
        (2, ParallelSettings(pp=2)),
        (4, ParallelSettings(tp=2, pp=2)),
    ],
    ids=["alone", "dp2", "tp2", "pp2", "pp2 tp2"],
)
def test_every_gradient_of_a_mixture_is_the_weighted_sum_of_two_plain_steps(
    world_size: int, parallel: ParallelSettings
) -> None:
    """Micro-batches of both kinds and of one; rows without a target; every ZeRO stage, bf16, tied weights, z-loss.

    Micro-batches of two rows are of either kind, both and no target, so one compiled case has all that a rank meets.
    """
    layouts = _LAYOUTS if parallel == _ALONE else [("zero1", "fp32"), ("zero1", "bf16"), ("zero1", "fp32")]
    # A layout is cut otherwise on one rank than on two.
    pairs = [(layout, (1, 2, 4)[(number + world_size) % 3]) for number, layout in enumerate(layouts)]
    cases = [
        OneStep(layout, rows, AttentionKind.BIDIRECTIONAL, rows > 2, parallel=parallel, is_mixed=True,
                z_loss=0.02 * (rows > 2), first_row=2)
        for layout, rows in pairs
    ]  # fmt: skip
    whole = OneStep(("zero0", "fp32"), 2, AttentionKind.BIDIRECTIONAL, is_mixed=True, first_row=2, is_compiled=True)
    windows = OneStep(("zero1", "fp32"), 2, AttentionKind.BIDIRECTIONAL, parallel=parallel, is_mixed=True, first_row=2,
                      model="modernbert", num_blocks=3)  # fmt: skip
    _check([*cases, windows, *([whole] if world_size == 1 else [])], world_size)


def test_every_gradient_with_stages_that_are_told() -> None:
    told = ParallelSettings(pp=2, stages=(3, 1))
    _check([OneStep(("zero1", "fp32"), 2, AttentionKind.CAUSAL, True, parallel=told, num_blocks=4)], 2)


def _check(cases: list[OneStep], world_size: int) -> None:
    for case, answers in zip(cases, run_distributed(cases, world_size=world_size), strict=True):
        limit = gradient_tolerance(_DTYPES[case.layout[1]])
        expected_loss, expected = expected_step(case)
        norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm().item()
        held: set[str] = set()
        for loss, grad_norm, gradients in answers:
            assert loss == pytest.approx(expected_loss, rel=limit), case
            assert grad_norm == pytest.approx(norm, rel=limit), case
            held |= gradients.keys()
            assert case.parallel.pp > 1 or gradients.keys() == expected.keys()
            for name, gradient in gradients.items():
                difference = (torch.from_numpy(gradient) - expected[name]).norm() / expected[name].norm()
                assert difference <= limit, (case, name, float(difference))
        assert held == expected.keys()


def test_gradients_accumulated_in_fp32_reach_the_optimizer_in_fp32() -> None:
    """A sum of eight bf16 gradients is rarely a bf16 number itself; rounded on the way, every one of them would be."""
    cases = [OneStep((stage, "bf16"), 1, AttentionKind.CAUSAL) for stage in ("zero1", "zero2", "zero3")]
    for world_size in (1, 2):
        found = [answers[0] for answers in run_distributed(cases, world_size=world_size)]
        for case, (_, _, gradients) in zip(cases, found, strict=True):
            values = np.concatenate([gradient.ravel() for gradient in gradients.values()])
            values = values[values != 0]
            is_exact = torch.from_numpy(values).bfloat16().float().numpy() == values
            assert is_exact.mean() < 0.4, (case, world_size, is_exact.mean())
        (_, norm, gradients), *others = found
        for _, other_norm, other in others:
            assert other_norm == pytest.approx(norm, rel=1e-6)
            for name, gradient in gradients.items():
                np.testing.assert_allclose(other[name], gradient, rtol=1e-5, atol=1e-9, err_msg=name)
