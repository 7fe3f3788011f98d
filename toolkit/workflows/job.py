"""A job of several stages over one folder: each is announced, timed, and run unless it is finished."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.workflows.stages import Stages, TimedStage


class Job:
    """Runs stages, numbered from 1 to `num_stages`.

    Attributes:
        folder: where all stages write.
        stages: records of its stages.
        screen: the console.
        num_made: stages that were run and not found finished.
    """

    def __init__(self, folder: Path, *, num_stages: int) -> None:
        self.folder, self.stages, self.screen = folder, Stages(folder), console()
        self.num_made = 0
        self._num_stages, self._titles = num_stages, dict[str, str]()

    def stage(
        self,
        name: str,
        title: str,
        *,
        key: str,
        outputs: Sequence[Path],
        work: Callable[[], dict[str, float] | None],
    ) -> None:
        """Run one stage, unless it is finished; print its title and time.

        Args:
            name: of the record.
            title: printed.
            key: hash of all inputs.
            outputs: files or folders that it writes.
            work: runs it, and returns numbers to keep.
        """
        self._announce(name, title)
        if self.stages.is_intact(name, key):
            self.screen.print(f"     finished before, in {self.stages[name].seconds:.1f} s")
            return
        with self.stages.working(name, key):
            facts = work()
        self.num_made += 1
        self._close(name, outputs, facts)

    @contextmanager
    def always(self, name: str, title: str) -> Iterator[None]:
        """The block as a stage that always runs."""
        self._announce(name, title)
        with self.stages.working(name, key=""):
            yield
        self._close(name, [], None)

    def timed_stages(self) -> tuple[TimedStage, ...]:
        """The stages so far, in order, with their records."""
        return tuple(TimedStage(title, self.stages[name]) for name, title in self._titles.items())

    def _announce(self, name: str, title: str) -> None:
        self._titles[name] = title
        self.screen.print(f"{len(self._titles)}/{self._num_stages}  {title}", style="bold")

    def _close(self, name: str, outputs: Sequence[Path], facts: dict[str, float] | None) -> None:
        stage = self.stages.finish(name, outputs, facts=facts)
        self.screen.print(f"     done in {stage.seconds:.1f} s")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder of a job and lock it against a second one.

    Raises:
        SettingsError: it is in use, or cannot be written.
    """
    lock = FileLock(folder / ".job.lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise SettingsError(f"the same job is already running in {folder}. Wait for it, or stop it.") from None
    except OSError as error:
        raise SettingsError(f"could not write to {folder}: {error.strerror}. Start in a writable folder.") from None
    try:
        yield
    finally:
        lock.release()
