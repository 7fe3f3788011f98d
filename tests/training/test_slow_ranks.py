"""A rank that is slow by what it does by itself is told once, with its host."""

import time
from types import SimpleNamespace

import pytest
import torch

from toolkit.training.slow_ranks import ForwardTime, SlowRankHook, slow_ranks


@pytest.mark.parametrize(
    ("seconds", "num_stages", "expected"),
    [
        ([1.0, 1.0, 1.6, 1.0], 1, {2: 1.0}),
        ([1.0, 1.0, 1.4, 1.0], 1, {}),
        ([1.0, 1.6], 1, {1: 1.0}),
        # Stages have work of their own.
        ([1.0, 1.0, 4.0, 4.0], 2, {}),
        ([1.0, 1.0, 4.0, 7.0], 2, {3: 4.0}),
        ([0.001, 0.005], 1, {}),
        ([1.0], 1, {}),
    ],
)
def test_a_rank_is_slow_beside_the_median_of_its_stage(seconds, num_stages, expected):
    assert slow_ranks(seconds, least_seconds=0.005, num_stages=num_stages) == expected


def test_it_is_told_once_over_twenty_steps():
    said = []
    hook = SlowRankHook(["ann", "bob"], num_stages=1, say=said.append)

    def step(*seconds, length=0.5):
        hook.after_step(None, SimpleNamespace(own_seconds_W=seconds, seconds=length))

    # The first step compiles; a checkpoint or two are no matter either.
    step(0.1, 9.0)
    for _ in range(18):
        step(0.1, 0.1)
    step(0.1, 9.0)
    assert said == []
    for _ in range(20):
        # Nobody notices, in steps that long.
        step(0.1, 0.2, length=5)
    assert said == []
    for _ in range(40):
        step(0.1, 0.2)
    assert len(said) == 1
    assert said[0].startswith("rank 1 on bob is slow, and all others wait for it: its forward passes and its data take")
    assert "200 ms a step, 100 ms on the median rank (20 steps)" in said[0]


class _Sleeping(torch.nn.Module):
    def forward(self, seconds: float) -> None:
        time.sleep(seconds)


def test_training_passes_since_the_last_call_are_added_up():
    module = _Sleeping()
    own = ForwardTime(module, torch.device("cpu"))
    assert own.take() == 0
    for seconds in (0.02, 0.03):
        module(seconds)
    time.sleep(0.1)
    assert 0.05 <= own.take() < 0.1
    module.eval()
    module(0.05)
    assert own.take() == 0
    with pytest.raises(TypeError):
        module.train()("no number")
    # Half a pass is not of the next step.
    own.take()
    module(0.02)
    assert 0.02 <= own.take() < 0.1
