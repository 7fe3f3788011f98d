"""What each step of a run is, as pure functions of the step: its rows, where they begin, and its learning rate."""

from toolkit.engine.lr import learning_rate_at
from toolkit.objectives.schedule import Schedule
from toolkit.run.load import schedule_of
from toolkit.run.settings import RunSettings


class StepPlan:
    """The steps of a run; nothing in it has state, so no resume can land anywhere else.

    Attributes:
        schedule: phases by step.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.schedule: Schedule = schedule_of(settings)
        self._learning_rate, self._rows = settings.lr, settings.train.global_batch_rows
        branch = settings.branch
        self._ramp_start = 0 if branch is None else branch.ramp_start
        self._position = 0 if branch is None else branch.position

    def position(self, step: int) -> int:
        """Sample position of the first row of the update with 0-based index `step`."""
        return self._position + (step - self.schedule.first_step) * self._rows

    def learning_rate(self, step: int) -> float:
        """Of the update with 0-based index `step`."""
        return learning_rate_at(step - self._ramp_start, self._learning_rate, total_steps=self._rate_steps)

    def describe_learning_rate(self) -> str:
        """Shape, lengths and peak in words."""
        return self._learning_rate.describe(self._rate_steps)

    @property
    def _rate_steps(self) -> int:
        return self.schedule.total_steps - self._ramp_start
