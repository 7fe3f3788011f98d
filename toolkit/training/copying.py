"""Copies of checkpoints in object storage, made by a background thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from toolkit.core.errors import CheckpointError, UserError
from toolkit.run.folder import RunFolder
from toolkit.run.remote_checkpoints import copy_missing
from toolkit.training.hooks import Hook
from toolkit.training.run_state import RunState, StepInfo


class CopyHook(Hook):
    """Copies checkpoints that the storage does not have, from the time that one appears until the next does.

    Training waits for copies that are not done by then: no more than two checkpoints pile up on the disk. The hook
    contains the steps yet to be copied, which must not be deleted. Failures are reported, and retried with the next
    checkpoint; at the end, a failure is a CheckpointError.
    """

    def __init__(self, folder: RunFolder, url: str, *, say: Callable[[str], object]) -> None:
        self._folder, self._url, self._say = folder, url, say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._copies: Future[None] | None = None
        self._copied = set[int]()

    def __contains__(self, step: object) -> bool:
        return self._copies is not None and not self._copies.done() and step not in self._copied

    def on_start(self, info: StepInfo) -> None:
        """Copy checkpoints that an earlier process did not."""
        self._begin()

    def on_checkpoint(self, step: int) -> None:
        """Start its copy, and retry copies that failed before."""
        self._finish()
        self._begin()

    def on_end(self, state: RunState) -> None:
        """Wait for all copies."""
        if self._copies is not None and not self._copies.done():
            self._say(f"copying checkpoints to {self._url}")
        if (error := self._finish()) is not None:
            raise CheckpointError(
                f"checkpoints of {self._folder.path} could not be copied to checkpoint.copy_to: {error}\n"
                "They are whole here, and the same command copies them."
            )

    def close(self, error: BaseException | None) -> None:
        """Let no other copy start. One in progress ends with the process, so that an error is reported first."""
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def _begin(self) -> None:
        self._copies = self._pool.submit(copy_missing, self._folder, self._url, self._copied)

    def _finish(self) -> UserError | OSError | None:
        """Wait for the copies that were started; return their error if they failed."""
        try:
            if self._copies is not None:
                self._copies.result()
        except (UserError, OSError) as error:
            self._say(f"a checkpoint is not copied yet: {error}")
            return error
        return None
