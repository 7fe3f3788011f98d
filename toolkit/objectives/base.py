"""The objective protocol: a pure function from token rows to inputs and a list of targets, plus one attention kind.

A new objective is a class like this with a settings class, in one file:

    class FirstToken:
        '''Predict the first token of every segment from the rest.'''

        name = "first-token"
        attention = AttentionKind.BIDIRECTIONAL

        class Settings(Settings):
            '''Nothing to set.'''

        def __init__(self, settings, vocabulary): ...
        def build(self, tokens_BS, segments_BS, draws): ...

It is found through an entry point of the group `toolkit.objectives` (name = kind, value = the class), or `register`.
"""

from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from toolkit.core.draws import Draws
from toolkit.core.types import AttentionKind, IntArray, Targets, Vocabulary


class Objective(Protocol):
    """Turns token rows into a supervised problem. Pure: equal arguments give equal results.

    An objective that changes during a phase has one more method, also pure:

        def at(self, progress: float) -> Objective: ...

    It returns the objective for a step, with the same name and attention. `progress` is 0 at the first step of the
    phase and 1 at the last (1 in a phase of one step). Evaluation uses the objective as constructed, without `at`, so
    that losses are comparable across steps.
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
            segments_BS: 1..k along a row, 0 on padding, (B, S). Never written to.

        Returns:
            Inputs of shape (B, S) and N targets; N may be 0. No target is on padding, and the targets of a segment
            depend only on that segment.
        """


class ObjectiveClass(Protocol):
    """A class that makes an objective from its own settings and the vocabulary of the data."""

    name: ClassVar[str]
    attention: ClassVar[AttentionKind]
    Settings: ClassVar[type[BaseModel]]

    def __call__(self, settings: Any, vocabulary: Vocabulary) -> Objective:
        """Make one; raise `SettingsError` if settings and vocabulary do not fit."""


def at_progress(objective: Objective, progress: float) -> Objective:
    """The objective at `progress` in the phase: the result of its `at`, or itself if it has none."""
    at = getattr(objective, "at", None)
    there: Objective = objective if at is None else at(progress)
    return there
