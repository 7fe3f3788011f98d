"""How the hub is asked: through its own client, with patience, and with errors that say what to do."""

import http.client
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from toolkit.core.console import console
from toolkit.core.errors import UserError

_Answer = TypeVar("_Answer")

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_SECONDS = 300
_LONG_SECONDS = 4


def endpoint() -> str:
    """Where the hub is: HF_ENDPOINT, else the public one."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def with_retries(
    ask: Callable[[], _Answer], *, waits: Sequence[float], sleep: Callable[[float], object] = time.sleep
) -> _Answer:
    """Ask until there is an answer; again after each of the waits (seconds) if what went wrong may pass.

    A dropped connection, a timeout, a server in trouble and a rate limit may pass; a server that names a time gets
    it. Other errors, and the last one, are raised as they come.
    """
    for wait in waits:
        try:
            return ask()
        except Exception as error:
            if not _may_pass(error):
                raise
            seconds = max(wait, _wanted_wait(error))
            if seconds >= _LONG_SECONDS:
                console().print(f"{_happened(error)}. Asking again in {seconds:.0f} s.")
            sleep(seconds)
    return ask()


def _may_pass(error: Exception) -> bool:
    status = _status(error)
    return status in _PASSING if status is not None else _is_of_network(error)


def _is_of_network(error: Exception) -> bool:
    """Whether the client's HTTP library (httpx, or httpx2 by its version) could not speak with the server."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2")


def _status(error: Exception) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _wanted_wait(error: Exception) -> float:
    """Seconds that a server asks to wait."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    seconds = re.fullmatch(r"\d+", headers.get("retry-after", ""))
    # The hub's own way: how many requests are left, and after how many seconds there are new ones.
    window = re.search(r"r=0;t=(\d+)", headers.get("ratelimit", "").replace(" ", ""))
    wanted = float(seconds[0]) if seconds else float(window[1]) if window else 0.0
    return min(wanted, _MOST_SECONDS)


def hub_error(what: str, error: Exception) -> UserError:
    """What went wrong with something on the hub ("data set a/b"), and what to do; for errors that the client raises."""
    from huggingface_hub import errors, get_token

    hub, status = endpoint(), _status(error)
    if isinstance(error, errors.OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set. Unset it, or give files on this machine as sources."
    elif status == 401 and "nvalid credentials" in str(error):
        reason = f"{hub} does not accept the token in use. Set HF_TOKEN to a valid one, or unset it."
    elif isinstance(error, errors.GatedRepoError) or status == 403:
        state = "the token in use has no access" if get_token() else "no token is set"
        reason = (
            f"it is gated, and {state}. Accept its terms on {hub} with your account, and set HF_TOKEN to a token of it."
        )
    elif isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        reason = f"{hub} has none of this name. If it is private, set HF_TOKEN to a token that may read it."
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = f"{hub} has it, but not this revision. Look the revision up there."
    elif isinstance(error, errors.EntryNotFoundError):
        reason = f"{hub} has the data set, but not (or no more) this file. Start again, or name another revision."
    elif status is not None:
        reason = f"{_happened(error)}. Try again later; what is finished is kept."
    else:
        reason = (
            f"{_happened(error)}. Check the network, HF_ENDPOINT and proxies; "
            "started again, the command goes on where it was."
        )
    return UserError(f"The {what} cannot be read: {reason}")


def _happened(error: Exception) -> str:
    hub, status = endpoint(), _status(error)
    if status is not None:
        # The error's own text holds the address, which may be signed for a while: a secret.
        return f"{hub} answered {status} {http.client.responses.get(status, '')}".strip()
    first_line = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return f"{hub} cannot be reached or broke off ({first_line})"
