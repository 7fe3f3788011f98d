"""Exit codes and printed messages of errors; the only place that knows both."""

import errno
import os
import sys
import traceback
from collections.abc import Callable

from toolkit.core.environment import check_numbers, wait_passively
from toolkit.core.errors import ToolkitError, is_out_of_room
from toolkit.core.text import terminal_safe
from toolkit.parallel.launcher import read_launcher

DEBUG_VARIABLE = "TOOLKIT_DEBUG"
INTERRUPTED = 130
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SUCH_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
_LONGEST_PATH = 80


def print_error(message: str) -> None:
    """Print an error to standard error."""
    print(f"error: {terminal_safe(message)}", file=sys.stderr, flush=True)


def print_error_on_rank_0(message: str) -> None:
    """Print an error once, in programs that a launcher starts several times."""
    if read_launcher().rank == 0:
        print_error(message)


def guarded(program: Callable[[], object], *, report: Callable[[str], None] = print_error) -> int:
    """Run a program and return its exit code; bugs leave a traceback, and `report` gets the message of other errors."""
    is_debugging = bool(os.environ.get(DEBUG_VARIABLE))
    try:
        check_numbers()
    except ToolkitError as error:
        # Machines differ: once per machine.
        if read_launcher().local_rank == 0:
            print_error(str(error))
        return error.exit_code
    wait_passively()
    try:
        program()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code, message = _exit_code_and_message(error)
        is_bug_here = code == 1 and not (isinstance(error, ToolkitError) and error.is_of_another_rank)
        if is_debugging or is_bug_here:
            traceback.print_exc()
        if is_debugging or not is_bug_here:
            report(message)
        return code
    return 0


def _exit_code_and_message(error: Exception) -> tuple[int, str]:
    """Exit code and message of an error; 1 means a bug."""
    if isinstance(error, ToolkitError):
        return error.exit_code, str(error)
    # tokenization has its own family of exceptions, which knows nothing of exit codes.
    if any(base.__module__.split(".")[0] == "tokenization" for base in type(error).__mro__[:-1]):
        return 2, str(error)
    if isinstance(error, OSError) and (remedy := _remedy(error)):
        path = str(error.filename) if error.filename else "a file"
        shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
        return 2, f"could not read or write {shown}: {error.strerror}. {remedy}"
    if isinstance(error, ValueError) and str(error) == "embedded null byte":
        return 2, "a path contains the NUL character, which is not allowed. Remove it."
    return 1, str(error)


def _remedy(error: OSError) -> str | None:
    if is_out_of_room(error):
        return "Free space or choose another folder (for temporary files: TMPDIR); finished files are intact."
    if error.errno in _CLOSED:
        return "Change its permissions or choose another path; finished files are intact."
    if error.errno in _NO_SUCH_PATH:
        return "Choose another path."
    return None
