"""Moments of hooks in a run, and hooks that fail."""

import logging
from dataclasses import dataclass, field, replace
from importlib import import_module

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import UserError
from toolkit.testing.distributed import run_distributed
from toolkit.training.hooks import Hook, HookList
from toolkit.training.rank_errors import RankErrors


@dataclass
class Watches(Hook):
    """Writes down every moment."""

    moments: list[tuple[object, ...]] = field(default_factory=list)

    def on_start(self, info):
        self.moments.append(("start", info.step))

    def after_evaluation(self, info, losses):
        self.moments.append(("evaluation", info.step, sorted(losses)))

    def after_step(self, info, metrics):
        self.moments.append(("step", info.step, info.is_phase_end))

    def on_checkpoint(self, step):
        self.moments.append(("checkpoint", step))

    def on_end(self, state):
        self.moments.append(("end", state.step))

    def close(self, error):
        self.moments.append(("close", None if error is None else type(error).__name__))


@dataclass(frozen=True)
class Moments:
    """A run of 3 + 3 steps, from the start or from where its folder stands; gives the moments that hooks had."""

    run_file: str
    stop_after: tuple[str, int] = ("none", 0)
    """The moment in which it is asked to stop."""

    def __call__(self) -> list[tuple[object, ...]]:
        from toolkit.run import load_run
        from toolkit.training import loop, pretrain

        watches = Watches()
        overrides = ["schedule.0.steps=3", "schedule.1.steps=3", "lr.warmup_steps=1", "lr.decay_steps=1"]
        settings = load_run(self.run_file, [*overrides, "checkpoint.every=2", "eval.every=4"])
        train = loop.train

        def watched(run: loop.Run, state: object) -> object:
            stops = lambda: any(self.stop_after == moment[:2] for moment in watches.moments)  # noqa: E731
            return train(replace(run, hooks=[watches, *run.hooks], is_stop_requested=stops), state)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(import_module("toolkit.training.pretrain"), "train", watched)
            pretrain(settings)
        return watches.moments


@pytest.mark.parametrize("asked", [("step", 3), ("evaluation", 3)])
def test_moments_of_a_run_that_is_stopped_and_resumed(tmp_path, asked):
    """Asked after an evaluated step, or while it is evaluated: no other step is made."""
    run_file = str(write_run(tmp_path))
    ((first,), (second,)) = run_distributed([Moments(run_file, asked), Moments(run_file)], world_size=1)
    names = ["clm", "mlm"]
    steps = [[moment for moment in moments if moment[0] != "checkpoint"] for moments in (first, second)]
    assert steps[0] == [
        ("start", 0), ("evaluation", 0, names), ("step", 1, False), ("step", 2, False),
        ("evaluation", 3, names), ("step", 3, True), ("end", 3), ("close", None),
    ]  # fmt: skip
    assert steps[1] == [
        ("start", 3), ("evaluation", 4, names), ("step", 4, False), ("step", 5, False),
        ("evaluation", 6, names), ("step", 6, True), ("end", 6), ("close", None),
    ]  # fmt: skip
    for moments, saved in ((first, [2, 3]), (second, [4, 6])):
        # A checkpoint appears after its step, and before the next one or the end; how soon is up to the disk.
        assert [moment[1] for moment in moments if moment[0] == "checkpoint"] == saved
        for step in saved:
            assert (
                _place(moments, "step", step) < _place(moments, "checkpoint", step) < _place(moments, "end", saved[-1])
            )


def _place(moments, name, step):
    return next(place for place, moment in enumerate(moments) if moment[:2] == (name, step))


class _Fails(Hook):
    def close(self, error):
        raise UserError("the disk is full")

    def on_checkpoint(self, step):
        raise UserError("no permission")


@pytest.fixture
def alone():
    """Errors of a single rank, which raises its own."""

    class Ranks:
        def together(self):
            import contextlib

            return contextlib.nullcontext()

    return RankErrors(Ranks())


def test_a_hook_that_fails_does_not_keep_the_others_from_their_moment(alone):
    watches = Watches()
    hooks = HookList([_Fails(), watches], alone)
    hooks.each(lambda hook: hook.on_checkpoint(4))
    assert watches.moments == [("checkpoint", 4)]
    with pytest.raises(UserError, match="no permission"):
        alone.raise_agreed()


def test_all_hooks_are_closed_though_one_fails(alone):
    watches = Watches()
    HookList([_Fails(), watches], alone).close(None)
    assert watches.moments == [("close", None)]
    with pytest.raises(UserError, match="the disk is full"):
        alone.raise_agreed()


def test_an_error_is_not_hidden_by_that_of_closing(alone, caplog):
    watches, error = Watches(), RuntimeError("the first")
    with caplog.at_level(logging.WARNING):
        HookList([_Fails(), watches], alone).close(error)
    assert watches.moments == [("close", "RuntimeError")]
    assert "_Fails could not be closed: the disk is full" in caplog.text
