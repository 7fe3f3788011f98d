"""Data sets on the Hugging Face hub: a repository at a commit, and one message for what goes wrong.

What tokenizers need too (names, downloads, retries) is in `tokenization.hub`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tokenization.hub import endpoint, hub_error_message, is_network_error, with_retries
from toolkit.core.console import console
from toolkit.core.errors import UserError

TIMEOUT_SECONDS = 30
"""Time for the answer to a short request."""

_WAITS_SECONDS = (0.5, 1, 2)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Snapshot:
    """A commit of a repository, and the paths of its files, or of some of them, in order."""

    commit: str
    files: tuple[str, ...]


def dataset_snapshot(repository: str, revision: str) -> Snapshot:
    """A data set at the commit that a revision names now."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint())
    information = list_with_retries(lambda: api.dataset_info(repository, revision=revision, timeout=TIMEOUT_SECONDS))
    return Snapshot(information.sha or revision, tuple(sorted(file.rfilename for file in information.siblings or ())))


def list_with_retries(ask: Callable[[], _Result]) -> _Result:
    """Ask what a repository has, again after each transient failure; long waits are reported on the screen."""
    return with_retries(ask, waits=_WAITS_SECONDS, report=console().print)


@contextmanager
def hub_errors(what: str, *, alternative: str) -> Iterator[None]:
    """Raise what goes wrong on the way to the hub as a UserError; the words are those of `hub_error_message`."""
    try:
        yield
    except Exception as error:
        is_of_datasets = type(error).__module__ == "datasets.exceptions"
        if isinstance(error, OSError | ValueError) or is_network_error(error) or is_of_datasets:
            raise UserError(hub_error_message(what, error, alternative=alternative)) from error
        raise
