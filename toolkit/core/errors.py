"""Exceptions, and the exit code of each family.

ToolkitError                 1  a bug, unless a subclass says otherwise
├── UserError                2  something the user can fix: says what was asked, what was found, what to do
│   ├── SettingsError           a run file, a --set or a combination of settings
│   ├── CorpusError             a corpus that is missing, damaged or does not fit
│   │   └── NoRowError              an intact corpus that is too small for a single row
│   └── CheckpointError         a checkpoint that is missing, damaged or does not fit
├── LostRankError            1  another rank of the run has ended; its own message says why
├── NonFiniteError           3  training met a non-finite loss or gradient
└── LossSpikeError           3  training met a loss far above the previous ones, and was set to stop there
"""

import errno

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ToolkitError(Exception):
    """Base class. If `is_agreed`, every rank of a run raises it, so only rank 0 reports it."""

    exit_code = 1
    is_agreed = False

    @property
    def is_of_another_rank(self) -> bool:
        """True if all ranks raise it but it occurred on another one, which has the cause to show."""
        return self.is_agreed and self.__cause__ is None


class UserError(ToolkitError):
    """Something the user can fix; its message is shown without a traceback."""

    exit_code = 2


class SettingsError(UserError):
    """A setting, or a combination of settings, that cannot run."""


class CorpusError(UserError):
    """A corpus that is missing, damaged or does not fit the run."""


class NoRowError(CorpusError):
    """A corpus without a single row under these settings."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or does not fit."""


class LostRankError(ToolkitError):
    """Another rank of the run has ended; this is not a bug of this rank, so no traceback is shown.

    `is_told_here`: whether, of the remaining ranks, this one reports it.
    """

    is_told_here = True
    is_of_another_rank = True


class NonFiniteError(ToolkitError):
    """A non-finite loss or gradient norm, raised on every rank; the state it came from is not saved."""

    exit_code = 3
    is_agreed = True
    step: int | None = None
    """In pretraining: the update in which it occurred, or after which an evaluation found it."""

    @classmethod
    def at_step(cls, step: int, message: str) -> "NonFiniteError":
        """The error for a pretraining step."""
        error = cls(f"step {step}: {message}")
        error.step = step
        return error


class LossSpikeError(ToolkitError):
    """A loss far above the previous ones, raised on every rank; the state it came from is not saved."""

    exit_code = 3
    is_agreed = True


def is_out_of_room(error: BaseException) -> bool:
    """True if the disk is full, or a quota or the file size limit is reached."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM
