"""Tied weights under pipeline parallelism: the first and the last stage have a copy each, which stay one weight."""

from dataclasses import dataclass

import torch

from tests.equivalence.test_gradients import OneStep
from toolkit.core.types import AttentionKind
from toolkit.engine.optimizer_state import _link_moments
from toolkit.engine.ranks import join_ranks
from toolkit.model import Encoder
from toolkit.parallel.topology import ParallelSettings
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import tiny_encoder

_STEPS = 20
_PIPELINE = ParallelSettings(tp=1, pp=2)


class _OfWidth40(OneStep):
    def encoder(self) -> Encoder:
        return tiny_encoder(seed=5, hidden_size=40, initializer_range=0.02, tie_word_embeddings=True)


@dataclass(frozen=True)
class TiedCopies:
    """Some steps on the rows of `step`; whether weight and moments of all ranks' copies are equal to the last bit."""

    step: OneStep

    def __call__(self) -> dict[str, bool]:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        engine, batches, terms = self.step.prepared()
        for _ in range(_STEPS):
            engine.train_step(batches, terms=terms, learning_rate=0.05)
        _link_moments(engine.deepspeed.optimizer)
        weight = engine.named_parameters()["model.embed_tokens.weight"]
        own = {
            "weight": safe_get_full_fp32_param(weight),
            "exp_avg": safe_get_full_optimizer_state(weight, "exp_avg"),
            "exp_avg_sq": safe_get_full_optimizer_state(weight, "exp_avg_sq"),
        }
        copies = join_ranks(_PIPELINE).gather({name: tensor.clone() for name, tensor in own.items()})
        engine.close()
        return {name: all(torch.equal(copy[name], tensor) for copy in copies) for name, tensor in own.items()}


def test_copies_of_a_tied_weight_stay_equal_to_the_last_bit() -> None:
    """Two copies of the model, so that the optimizer's partitions of a group end within the weight.

    Of width 40: partitions of 1,980 and 2,000 numbers, were the weight in a group with its stage's norms, and the last
    ones of 1,980 are not computed as a vector.
    """
    kind = AttentionKind.BIDIRECTIONAL
    cases = [
        TiedCopies(_OfWidth40(("zero1", precision), 2, kind, decays_all=False, parallel=_PIPELINE))
        for precision in ("fp32", "bf16")
    ]
    for case, ranks in zip(cases, run_distributed(cases, world_size=4), strict=True):
        assert all(all(found.values()) for found in ranks), (case.step.layout, ranks)
