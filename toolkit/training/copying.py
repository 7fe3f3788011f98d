"""Copies of checkpoints in object storage, made by a thread beside the training."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from toolkit.core.errors import CheckpointError, UserError
from toolkit.run.folder import RunFolder
from toolkit.run.remote_checkpoints import copy_checkpoint
from toolkit.training.hooks import Hook
from toolkit.training.run_state import RunState, StepInfo

_MOST_WAITING = 2
"""More checkpoints than these do not pile up on the disk: training waits."""


class CopyHook(Hook):
    """Copies each checkpoint that has appeared; it contains the steps of those that wait, which must not be deleted.

    A copy that fails is told, and made again with the next one. At the end all are waited for; one that is missing then
    is a CheckpointError.
    """

    def __init__(self, folder: RunFolder, url: str, *, say: Callable[[str], object]) -> None:
        self._folder, self._url, self._say = folder, url.rstrip("/"), say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._waiting: dict[int, Future[None]] = {}
        self._failed: dict[int, UserError | OSError] = {}

    def __contains__(self, step: object) -> bool:
        return step in self._waiting

    def on_start(self, info: StepInfo) -> None:
        """Copy the one that the run resumes from, unless it is there."""
        if self._folder.checkpoint(info.step).is_dir():
            self._copy(info.step)

    def on_checkpoint(self, step: int) -> None:
        """Begin its copy, and those that failed before."""
        self._collect(most_left=_MOST_WAITING)
        for failed in [step for step in self._failed if self._folder.checkpoint(step).is_dir()]:
            self._copy(failed)
        self._failed.clear()
        self._copy(step)

    def on_end(self, state: RunState) -> None:
        """Wait for all."""
        if self._waiting:
            self._say(f"copying checkpoints to {self._url}")
        self._collect(most_left=0)
        if self._failed:
            step, error = list(self._failed.items())[-1]
            raise CheckpointError(
                f"the checkpoint {self._folder.checkpoint(step)} could not be copied to checkpoint.copy_to: {error}\n"
                "It is whole here: copy it there yourself, its manifest.json last."
            )

    def close(self, error: BaseException | None) -> None:
        """Let no other copy begin. That which was begun ends with the process: an error is told first."""
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def _copy(self, step: int) -> None:
        folder = self._folder.checkpoint(step)
        self._waiting[step] = self._pool.submit(copy_checkpoint, folder, f"{self._url}/{folder.name}")

    def _collect(self, *, most_left: int) -> None:
        """Look at copies that have ended, after waiting until only so many have not."""
        for step, copy in list(self._waiting.items()):
            if len(self._waiting) <= most_left and not copy.done():
                break
            try:
                copy.result()
            except (UserError, OSError) as error:
                self._failed[step] = error
                self._say(f"the checkpoint of step {step:,} is not copied yet: {error}")
            del self._waiting[step]
