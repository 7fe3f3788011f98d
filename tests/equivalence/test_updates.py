"""What settings leave out of an update, in every layout: decay of norms and embeddings, and clipping."""

from dataclasses import dataclass, replace

import pytest
import torch

from tests.equivalence.test_gradients import FloatArray, OneStep, expected_step
from toolkit.core.types import AttentionKind
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.engine.optimizer_state import collect
from toolkit.parallel.topology import ParallelSettings
from toolkit.testing.distributed import run_distributed

# Engines on several ranks.
pytestmark = pytest.mark.costs(10)

_LEARNING_RATE = 0.5
# Gradients far below AdamW's epsilon move nothing.
_NEXT_TO_NOTHING = 1e-20
_STEPS = [OneStep((f"zero{stage}", "fp32"), 2, AttentionKind.BIDIRECTIONAL, is_tied=True) for stage in range(4)] + [
    OneStep(("zero1", "fp32"), 2, AttentionKind.BIDIRECTIONAL, is_tied, parallel=parallel)
    for is_tied in (False, True)
    for parallel in (ParallelSettings(tp=2), ParallelSettings(pp=2))
]


@dataclass(frozen=True)
class OneUpdate:
    """A step whose loss is multiplied; weights after it and first moments by parameter name, from all ranks' shares."""

    step: OneStep
    coefficient: float

    def __call__(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        engine, batches, terms = self.step.prepared()
        scaled = [term._replace(coefficient=self.coefficient) for term in terms]
        engine.train_step(batches, terms=scaled, learning_rate=_LEARNING_RATE)
        states = collect(engine, is_mine=lambda name: True)
        found = {state.name: (state.weight.numpy(), state.exp_avg.numpy()) for state in states}
        engine.close()
        return found


@pytest.mark.parametrize("decays_all", [True, False])
def test_weights_without_a_gradient_move_by_the_decay_that_is_theirs(decays_all: bool) -> None:
    cases = [OneUpdate(replace(step, decays_all=decays_all), _NEXT_TO_NOTHING) for step in _STEPS]
    decay = 1 - _LEARNING_RATE * OptimizerSettings().weight_decay
    for case, answers in zip(cases, run_distributed(cases, world_size=2), strict=True):
        for name, before in case.step.encoder().named_parameters():
            is_exempt = before.ndim < 2 or name == "model.embed_tokens.weight"
            expected = before.detach() * (decay if decays_all or not is_exempt else 1.0)
            found = [torch.from_numpy(answer[name][0]) for answer in answers if name in answer]
            assert found, (case, name)
            for weight in found:
                assert torch.allclose(weight, expected, rtol=1e-6, atol=0), (case, name)


def test_without_clipping_large_gradients_reach_the_optimizer() -> None:
    cases = [OneUpdate(step, 1000.0) for step in _STEPS]
    for case, answers in zip(cases, run_distributed(cases, world_size=2), strict=True):
        _, gradients = expected_step(case.step)
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
        assert 1000 * norm > 100
        found = {name: moments for answer in answers for name, (_, moments) in answer.items()}
        assert found.keys() == gradients.keys()
        squares = sum(float((torch.from_numpy(moments) ** 2).sum()) for moments in found.values())
        assert squares**0.5 == pytest.approx(1000 * norm, rel=1e-4), case
