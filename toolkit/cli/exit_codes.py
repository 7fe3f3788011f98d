"""From an error to one message and an exit code; the only place that knows both."""

import errno
import os
import sys
import traceback
from collections.abc import Callable

from toolkit.core.errors import ToolkitError, is_out_of_room

DEBUG_VARIABLE = "TOOLKIT_DEBUG"
INTERRUPTED = 130
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SUCH_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
_LONGEST_PATH = 80


def guarded(program: Callable[[], object], *, is_quiet_rank: bool = False) -> int:
    """Run a program and return its exit code; print what went wrong to standard error.

    Args:
        program: called without arguments.
        is_quiet_rank: print from rank 0 only, for programs that a launcher starts several times.
    """
    is_speaker = not is_quiet_rank or os.environ.get("RANK", "0") == "0"
    try:
        program()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if _is_debugging():
            traceback.print_exc()
        code, message = _judged(error)
        if code == 1 and not _is_debugging():
            traceback.print_exc()
        elif is_speaker:
            print(f"error: {message}", file=sys.stderr, flush=True)
        return code
    return 0


def _is_debugging() -> bool:
    return bool(os.environ.get(DEBUG_VARIABLE))


def _judged(error: Exception) -> tuple[int, str]:
    """Exit code and message of an error; 1 means a bug."""
    if isinstance(error, ToolkitError):
        return error.exit_code, str(error)
    # Its own package raises its own family, which knows nothing of exit codes.
    if any(base.__module__.split(".")[0] == "tokenization" for base in type(error).__mro__[:-1]):
        return 2, str(error)
    if isinstance(error, OSError) and (remedy := _remedy(error)):
        place = _shortened(str(error.filename)) if error.filename else "a file"
        return 2, f"{place} cannot be read or written: {error.strerror}. {remedy}"
    if isinstance(error, ValueError) and str(error) == "embedded null byte":
        return 2, "a path holds the character NUL, which no path can have. Take it out."
    return 1, str(error)


def _remedy(error: OSError) -> str | None:
    """What a person can do about an error of the system; None where nothing is known."""
    if is_out_of_room(error):
        return "Free space or choose another folder (for temporary files: TMPDIR); what was finished before is whole."
    if error.errno in _CLOSED:
        return "Allow access to it or choose another place; what was finished before is whole."
    if error.errno in _NO_SUCH_PATH:
        return "Give another path."
    return None


def _shortened(path: str) -> str:
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
