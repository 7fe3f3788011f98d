"""Copies of checkpoints in object storage, made by a thread beside the training."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from toolkit.core.errors import CheckpointError, UserError
from toolkit.run.folder import RunFolder
from toolkit.run.remote_checkpoints import copy_missing
from toolkit.training.hooks import Hook
from toolkit.training.run_state import RunState, StepInfo


class CopyHook(Hook):
    """Copies what the run folder has and the storage has not, from each checkpoint on until the next one appears.

    Training waits for copies that have not ended by then: no more than two checkpoints pile up on the disk. It contains
    the steps that are yet to be copied, which must not be deleted. Failures are reported, and retried with the next
    one; at the end it is a CheckpointError.
    """

    def __init__(self, folder: RunFolder, url: str, *, say: Callable[[str], object]) -> None:
        self._folder, self._url, self._say = folder, url, say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._copies: Future[None] | None = None
        self._copied = set[int]()

    def __contains__(self, step: object) -> bool:
        return self._copies is not None and not self._copies.done() and step not in self._copied

    def on_start(self, info: StepInfo) -> None:
        """Copy what an earlier process did not."""
        self._begin()

    def on_checkpoint(self, step: int) -> None:
        """Begin its copy, and those of what failed before."""
        self._finish()
        self._begin()

    def on_end(self, state: RunState) -> None:
        """Wait for all."""
        if self._copies is not None and not self._copies.done():
            self._say(f"copying checkpoints to {self._url}")
        if (error := self._finish()) is not None:
            raise CheckpointError(
                f"checkpoints of {self._folder.path} could not be copied to checkpoint.copy_to: {error}\n"
                "They are whole here, and the same command copies them."
            )

    def close(self, error: BaseException | None) -> None:
        """Let no other copy begin. One in progress ends with the process: an error is reported first."""
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def _begin(self) -> None:
        self._copies = self._pool.submit(copy_missing, self._folder, self._url, self._copied)

    def _finish(self) -> UserError | OSError | None:
        """Wait for the copies that were started; what they failed with, if they did."""
        try:
            if self._copies is not None:
                self._copies.result()
        except (UserError, OSError) as error:
            self._say(f"a checkpoint is not copied yet: {error}")
            return error
        return None
