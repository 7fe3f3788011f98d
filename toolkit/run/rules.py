"""Rules that hold between groups of settings; each group's own rules live in its class."""

from toolkit.core.errors import SettingsError
from toolkit.objectives.schedule import Schedule
from toolkit.run.settings import RunSettings


def check_run(settings: RunSettings) -> None:
    """Refuse what cannot run, as far as settings alone can tell.

    Raises:
        SettingsError: naming the keys, what they say together, and what to change.
    """
    schedule = schedule_of(settings)
    settings.lr.ramps(schedule.total_steps)
    if settings.eval.every is not None and settings.data.validation is None:
        raise SettingsError(
            f"eval.every={settings.eval.every} asks for validation losses, but data.validation is not set.\n"
            "Set data.validation to a corpus folder, or leave eval.every out."
        )


def schedule_of(settings: RunSettings) -> Schedule:
    """The phases with their first and last steps."""
    return Schedule.resolve(
        settings.schedule,
        total_steps=settings.train.steps,
        global_batch_rows=settings.train.global_batch_rows,
        sequence_length=settings.data.sequence_length,
    )
