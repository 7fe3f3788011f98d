"""The objective protocol: a pure function from token rows to inputs and a list of targets, plus one attention kind.

A new one is a class of this shape with a settings class, in one file:

    class FirstToken:
        '''Predict the first token of every segment from the rest.'''

        name = "first-token"
        attention = AttentionKind.BIDIRECTIONAL

        class Settings(Settings):
            '''Nothing to set.'''

        def __init__(self, settings, vocabulary): ...
        def build(self, tokens_BS, segments_BS, draws): ...

It is found by an entry point of the group `toolkit.objectives` (name = kind, value = the class), or by `register`.
"""

from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from toolkit.core.draws import Draws
from toolkit.core.types import AttentionKind, IntArray, Targets, Vocabulary


class Objective(Protocol):
    """Turns token rows into a supervised problem. Pure: equal arguments give equal results.

    One that changes in the course of a phase has a method more, also pure:

        def at(self, progress: float) -> Objective: ...

    It gives the objective of a step, of the same name and attention. `progress` is 0 at the first step of the phase and
    1 at the last (1 in a phase of one step). Evaluation uses the objective as it is made, without `at`, so that its
    losses compare from step to step.
    """

    @property
    def name(self) -> str:
        """Kind of the objective."""

    @property
    def attention(self) -> AttentionKind:
        """The attention kind that the model uses on these inputs."""

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Inputs and targets for a micro-batch.

        Args:
            tokens_BS: token ids, (B, S). Never written to.
            segments_BS: 1..k along a row, 0 where there is padding, (B, S). Never written to.

        Returns:
            Inputs of shape (B, S) and N targets; N may be 0. No target lies on padding, and the targets of a segment
            depend on that segment alone.
        """


class ObjectiveClass(Protocol):
    """A class that makes an objective from its own settings and the vocabulary of the data."""

    name: ClassVar[str]
    attention: ClassVar[AttentionKind]
    Settings: ClassVar[type[BaseModel]]

    def __call__(self, settings: Any, vocabulary: Vocabulary) -> Objective:
        """Make one; raises SettingsError if settings and vocabulary do not fit."""


def at_progress(objective: Objective, progress: float) -> Objective:
    """The objective at a share of the phase: what its `at` gives, or itself where it has none."""
    at = getattr(objective, "at", None)
    there: Objective = objective if at is None else at(progress)
    return there
