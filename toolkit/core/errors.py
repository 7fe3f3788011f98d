"""Exceptions, and the exit code of each family.

ToolkitError                 1  a bug, unless a child says otherwise
├── UserError                2  something the user can fix: what was asked, what was found, what to do
│   ├── SettingsError           a run file, a --set or a combination of settings
│   ├── CorpusError             a corpus that is missing, damaged or does not fit
│   │   └── NoRowError              one that is whole, and too small for a single row
│   ├── CheckpointError         a checkpoint that is missing, damaged or does not fit
│   └── NotAvailableError       named by the documentation, not built yet
├── LostRankError            1  another rank of the run has ended; its own message says why
├── NonFiniteError           3  training met a loss or a gradient that is not finite
└── LossSpikeError           3  training met a loss far above those before it, and was to stop there
"""

import errno

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ToolkitError(Exception):
    """Root of the family. With `is_agreed`, every rank of a run raises it, so that rank 0 alone reports it."""

    exit_code = 1
    is_agreed = False

    @property
    def is_of_another_rank(self) -> bool:
        """All ranks raise it and another one met it: that one has the cause to show."""
        return self.is_agreed and self.__cause__ is None


class UserError(ToolkitError):
    """Something the user can fix; its message is shown without a traceback."""

    exit_code = 2


class SettingsError(UserError):
    """A setting, or a combination of settings, that cannot run."""


class CorpusError(UserError):
    """A corpus that is missing, damaged or does not fit the run."""


class NoRowError(CorpusError):
    """A corpus that has not one row under these settings."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or does not fit."""


class NotAvailableError(UserError):
    """Something that the documentation names and that is not built yet."""

    def __init__(self, what: str, instead: str = "For the available commands, see: toolkit --help") -> None:
        super().__init__(f"{what} is not available yet. {instead}")
        self._what, self._instead = what, instead

    def __reduce__(self) -> tuple[type["NotAvailableError"], tuple[str, str]]:
        """Errors travel between ranks; the default would put the whole text in place of `what`."""
        return type(self), (self._what, self._instead)


class LostRankError(ToolkitError):
    """Another rank of the run has ended; no bug of this one, so its traceback is not shown.

    `is_told_here`: of the ranks that are left, this one reports it.
    """

    is_told_here = True
    is_of_another_rank = True


class NonFiniteError(ToolkitError):
    """A loss or a gradient norm that is not finite, on every rank; the state it came from is not saved."""

    exit_code = 3
    is_agreed = True
    step: int | None = None
    """In pretraining: the update in which it occurred, or after which an evaluation met it."""

    @classmethod
    def at_step(cls, step: int, message: str) -> "NonFiniteError":
        """The error of a step of pretraining."""
        error = cls(f"step {step}: {message}")
        error.step = step
        return error


class LossSpikeError(ToolkitError):
    """A loss far above those before it, on every rank; the state it came from is not saved."""

    exit_code = 3
    is_agreed = True


def is_out_of_room(error: BaseException) -> bool:
    """The disk is full, or a quota or a limit on files is reached."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM
