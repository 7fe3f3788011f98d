"""Tokenizer files of a hub repository, through `huggingface_hub`: its cache, token, endpoint and offline mode."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tokenization.errors import TokenizationError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

# Seconds before the second and the third try.
_WAITS = (0.5, 3.0)

_NOT_HERE = "; and there is no file, folder or shipped spec of that name here."
_GIVE = "Look the name up there, or give a folder or file."


def looks_like_repository(name: str) -> bool:
    """Whether a name can be that of a repository, such as `EuroBERT/EuroBERT-210m` or `gpt2`."""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name and "--" not in name and len(name) <= 96


def download(repository: str, files: Sequence[str]) -> Path:
    """The folder with those of some files that a repository has, all of one commit: the newest of its main branch.

    Without a network, what is in the cache serves. A connection that breaks off is tried again.

    Args:
        repository: its id.
        files: paths inside it.

    Raises:
        TokenizationError: the repository does not exist or is closed to this user, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    for wait in (*_WAITS, None):
        try:
            return Path(snapshot_download(repository, allow_patterns=list(files)))
        except Exception as error:  # the HTTP library under the client has a family of its own
            if wait is None or not _may_pass(error):
                raise TokenizationError(
                    f"The hub repository {repository!r} {_what_to_do(repository, error)}"
                ) from error
            time.sleep(wait)
    raise AssertionError


def _may_pass(error: Exception) -> bool:
    """Whether asking again may help: the connection broke off, or the server is in trouble."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status == 429 or status >= 500
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2")


def _what_to_do(repository: str, error: Exception) -> str:
    from huggingface_hub import constants, errors, get_token

    hub = constants.ENDPOINT
    token = "the token in use has no access" if get_token() else "no token is set"
    if isinstance(error, errors.GatedRepoError):
        return f"is gated, and {token}. Accept its terms on {hub}/{repository} and set HF_TOKEN (or `hf auth login`)."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"does not exist on {hub}, or is private, and {token}{_NOT_HERE} {_GIVE}"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else f"{hub} cannot be reached"
        return (
            f"is not in the cache ({constants.HF_HUB_CACHE}), and {why}{_NOT_HERE} "
            "Run once with a network, or give a folder or file."
        )
    if isinstance(error, errors.HFValidationError):
        return f"cannot be one: it is no valid id{_NOT_HERE} {_GIVE}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    lines = str(error).strip().splitlines()
    # The text of an answer holds its address, which may be signed for a while: a secret.
    why = f"the answer was {status}" if status is not None else lines[0] if lines else type(error).__name__
    return f"cannot be read from {hub}: {why.rstrip('.')}. Try again, or give a folder or file."
