"""The Hugging Face hub: repositories by name and revision, downloads, retries, and error messages.

Requests go through `huggingface_hub`: its cache, token, endpoint and offline mode. Its own `http_backoff` retries plain
requests, but most of its calls, including `snapshot_download` and those of `HfApi`, request a listing only once, so
`with_retries` wraps them.
"""

import errno
import http.client
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenization.errors import TokenizationError

_Result = TypeVar("_Result")

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Class names, subclasses included, in Python, httpx, requests, botocore, aiohttp, google.auth and azure.core.
_TRANSIENT = frozenset(
    {
        *("ConnectionError", "TimeoutError", "Timeout", "gaierror", "IncompleteRead", "IncompleteReadError"),
        *("TransportError", "HTTPClientError", "ResponseParserError", "ClientConnectionError", "ClientPayloadError"),
        *("ServiceRequestError", "ServiceResponseError"),
    }
)
# Numbers of a plain OSError (no subclass): from s3fs if a server is in trouble, from network disks; None: no number.
_TRANSIENT_NUMBERS = (None, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EREMOTEIO, errno.ESTALE)
_MAX_WAIT_SECONDS = 300.0
# Waits from this length on are reported.
_REPORTED_SECONDS = 4.0
_WAITS = (0.5, 3.0)


@dataclass(frozen=True)
class HubName:
    """A repository on the hub, and optionally a revision of it: a branch, a tag or a commit.

    Attributes:
        repository: `organization/name`, or just `name` for a few old ones such as `gpt2`.
        revision: None for the newest commit of the main branch.
    """

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName | None":
        """Parse `organization/name` or `organization/name@revision`; None if it cannot be the name of a repository."""
        repository, at, revision = text.partition("@")
        if _REPOSITORY.fullmatch(repository) is None or ".." in repository or "--" in repository:
            return None
        if len(repository) > 96 or (at and not revision):
            return None
        return cls(repository, revision or None)

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def download(name: HubName, files: Sequence[str], *, what: str, alternative: str) -> Path:
    """Download some files of a model repository, all from one commit.

    Without a network, files in the cache are used.

    Args:
        files: paths and patterns; any that the repository does not have are skipped.
        what: what is downloaded, for error messages: "tokenizer", "model".
        alternative: what to do instead, for error messages: "give a folder or file".

    Returns:
        The snapshot folder, whose name is the commit hash.

    Raises:
        TokenizationError: the repository or revision does not exist or is not accessible, or the hub is unreachable.
    """
    from huggingface_hub import snapshot_download

    def ask() -> Path:
        return Path(snapshot_download(name.repository, revision=name.revision, allow_patterns=list(files)))

    try:
        return with_retries(ask, waits=_WAITS)
    except Exception as error:  # the HTTP library under the client has its own exceptions
        raise TokenizationError(hub_error_message(f"the {what} {name}", error, alternative=alternative)) from error


def endpoint() -> str:
    """URL of the hub: HF_ENDPOINT, else the public one."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def with_retries(
    ask: Callable[[], _Result],
    *,
    waits: Sequence[float],
    sleep: Callable[[float], object] = time.sleep,
    report: Callable[[str], object] | None = None,
    describe: Callable[[Exception], str] | None = None,
) -> _Result:
    """Call `ask`, and call it again after each wait if it failed with a transient error (`is_transient`).

    A server that says how long to wait is obeyed, up to five minutes. Other errors, and the last one, are raised
    unchanged.

    Args:
        waits: seconds before each retry.
        report: called with a sentence before a wait of 4 seconds or more.
        describe: returns the part of that sentence about an error; by default, as for an error of the hub.
    """
    describe = describe or _failure
    for wait in waits:
        try:
            return ask()
        except Exception as error:
            if not is_transient(error):
                raise
            seconds = max(wait, _requested_wait(error))
            if report is not None and seconds >= _REPORTED_SECONDS:
                report(f"{describe(error)}; retrying in {seconds:.0f} s")
            sleep(seconds)
    return ask()


def is_transient(error: Exception) -> bool:
    """True if the request may succeed later: a dropped connection, a timeout, a rate limit or a server in trouble."""
    if (status := _status(error)) is not None:
        return status in _TRANSIENT_STATUS
    names = {kind.__name__ for kind in type(error).__mro__}
    # The hub's client calls its offline mode a ConnectionError.
    is_one = not _TRANSIENT.isdisjoint(names) and "OfflineModeIsEnabled" not in names
    return is_one or (type(error) is OSError and error.errno in _TRANSIENT_NUMBERS)


def is_network_error(error: Exception) -> bool:
    """True if an error comes from the client's HTTP library (httpx, or httpx2, depending on its version)."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2")


def hub_error_message(what: str, error: Exception, *, alternative: str) -> str:
    """A message that says what went wrong on the hub and what to do, for an error that `huggingface_hub` raised.

    `what` was requested ("the data set a/b"); `alternative` is what to do instead ("give a folder or file").
    """
    from huggingface_hub import constants, errors, get_token

    hub, status = endpoint(), _status(error)
    token = "the token in use has no access" if get_token() else "no token is set"
    cached = f"it is not in the cache ({constants.HF_HUB_CACHE})"
    if isinstance(error, errors.OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set. Unset it, or"
    elif isinstance(error, errors.LocalEntryNotFoundError):
        if constants.is_offline_mode():
            reason = f"HF_HUB_OFFLINE is set and {cached}. Unset it, or"
        else:
            reason = f"{hub} cannot be reached and {cached}. Check the network, HF_ENDPOINT and proxies, or"
    elif isinstance(error, errors.HFValidationError):
        reason = "this is not a valid repository name. Look it up on the hub, or"
    elif status == 401 and "nvalid credentials" in str(error):
        reason = f"{hub} does not accept the token in use. Set HF_TOKEN to a valid one, unset it, or"
    elif isinstance(error, errors.GatedRepoError) or status == 403:
        reason = (
            f"it is gated, and {token}. Accept its terms on {hub} with your account and set HF_TOKEN to a token of "
            "that account (or run `hf auth login`), or"
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = "the repository exists, but not this revision. Look the revision up on the hub, or"
    elif isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        reason = (
            f"{hub} has no repository of this name, or it is private and {token}. Check the name, set HF_TOKEN for a "
            "private one, or"
        )
    elif isinstance(error, errors.EntryNotFoundError):
        reason = "the repository exists, but it does not have this file, or no longer. Look the file up on the hub, or"
    elif status is not None:
        reason = f"{_failure(error)}. Try again later, or"
    else:
        reason = f"{_failure(error)}. Check the network, HF_ENDPOINT and proxies, or"
    return f"could not download {what}: {reason} {alternative}."


def _status(error: Exception) -> int | None:
    """HTTP status of an error from httpx, requests, azure, aiohttp or gcsfs; None if absent."""
    found = (
        getattr(getattr(error, "response", error), "status_code", None),
        *map(error.__dict__.get, ("status", "code")),
    )
    return next((status for status in found if isinstance(status, int) and 400 <= status < 600), None)


def _requested_wait(error: Exception) -> float:
    """Seconds that the server asks to wait; 0 if it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    seconds = re.fullmatch(r"\d+", headers.get("retry-after", ""))
    # The hub's own header: requests left in this window, and seconds until the next window.
    window = re.search(r"r=0;t=(\d+)", headers.get("ratelimit", "").replace(" ", ""))
    requested = float(seconds[0]) if seconds else float(window[1]) if window else 0.0
    return min(requested, _MAX_WAIT_SECONDS)


def _failure(error: Exception) -> str:
    hub, status = endpoint(), _status(error)
    if status is not None:
        # The error's own text contains the URL, which may be signed: a secret.
        return f"{hub} answered {status} {http.client.responses.get(status, '')}".strip()
    first_line = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return f"the connection to {hub} failed ({first_line})"
