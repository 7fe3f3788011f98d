"""Data sets on the Hugging Face hub: the files of a repository at a commit, and hub errors as UserErrors.

Functions that tokenizers need too (names, downloads, retries) are in `tokenization.hub`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tokenization.hub import endpoint, hub_error_message, is_network_error, with_retries
from toolkit.core.console import console
from toolkit.core.errors import UserError

TIMEOUT_SECONDS = 30
"""Timeout of a short request."""

_WAITS_SECONDS = (0.5, 1, 2)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository, and the paths of all or some of its files, in order."""

    commit: str
    files: tuple[str, ...]


def dataset_snapshot(repository: str, revision: str) -> Snapshot:
    """Snapshot of a data set at the commit that a revision currently names."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint())
    information = list_with_retries(lambda: api.dataset_info(repository, revision=revision, timeout=TIMEOUT_SECONDS))
    return Snapshot(information.sha or revision, tuple(sorted(file.rfilename for file in information.siblings or ())))


def list_with_retries(ask: Callable[[], _Result]) -> _Result:
    """Ask for a repository's contents, with retries after transient failures; long waits are reported on the screen."""
    return with_retries(ask, waits=_WAITS_SECONDS, report=console().print)


@contextmanager
def hub_errors(what: str, *, alternative: str) -> Iterator[None]:
    """Re-raise errors of hub requests as a UserError with the text of `hub_error_message`."""
    try:
        yield
    except Exception as error:
        is_of_datasets = type(error).__module__ == "datasets.exceptions"
        if isinstance(error, OSError | ValueError) or is_network_error(error) or is_of_datasets:
            raise UserError(hub_error_message(what, error, alternative=alternative)) from error
        raise
