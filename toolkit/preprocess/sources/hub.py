"""Data sets on the hub: from a name and a configuration to the Parquet files of one commit.

What a configuration holds is said by the YAML head of the data set's README (`configs`), as for every other tool; a
repository that says nothing is taken by its folders.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.core.errors import UserError
from toolkit.preprocess.sources.hub_client import endpoint, hub_error, with_retries
from toolkit.preprocess.sources.hub_configurations import (
    Configuration,
    choose,
    from_folders,
    from_readme,
    literal,
    root_of,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

_SHORT_NAMES = {"fineweb-edu": "HuggingFaceFW/fineweb-edu"}
_NAME = re.compile(r"(?:datasets/)?(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>.+))?", re.ASCII)
_WAITS_SECONDS = (0.5, 1, 2)
_ANSWER_SECONDS = 30


@dataclass(frozen=True)
class HubEntry:
    """A Parquet file on the hub.

    Attributes:
        repository: organisation/name.
        path: where it is in the repository.
        commit: the one it was listed at.
        version: hash of its content.
        num_bytes: its size.
    """

    repository: str
    path: str
    commit: str
    version: str
    num_bytes: int


def is_hub_name(name: str) -> bool:
    """Whether a name can be one of a data set on the hub."""
    return name in _SHORT_NAMES or _NAME.fullmatch(name) is not None


def find_on_hub(name: str, *, subset: str | None) -> list[HubEntry]:
    """The Parquet files of one configuration of a data set.

    Args:
        name: a short name, or organisation/name, with @revision if it is not the main one.
        subset: the configuration; None if there is only one.

    Raises:
        UserError: the hub does not give it, or what is asked for is not in it.
    """
    match = _NAME.fullmatch(_SHORT_NAMES.get(name, name))
    assert match is not None
    try:
        return _Repository(match["repository"], match["revision"] or "main").find(subset)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError | ValueError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2"):
            short = "" if name in _SHORT_NAMES else ", the name of no file or folder here,"
            raise hub_error(f"data set {match['repository']}{short}", error) from error
        raise


class _Repository:
    """A data set on the hub, at the commit that a revision is at now."""

    def __init__(self, name: str, revision: str) -> None:
        from huggingface_hub import HfApi

        self.name, self._api = name, HfApi(endpoint=endpoint())
        information = with_retries(
            lambda: self._api.dataset_info(name, revision=revision, timeout=_ANSWER_SECONDS), waits=_WAITS_SECONDS
        )
        self._commit = information.sha or revision

    def find(self, subset: str | None) -> list[HubEntry]:
        """The Parquet files of a configuration, by path."""
        configurations = self._described()
        if configurations:
            files = self._matching(choose(configurations, subset, repository=self.name))
        else:
            files = [file for file in self._list("") if not file.path.startswith(".")]
        found = [file for file in files if file.path.endswith(".parquet")]
        if not found:
            raise UserError(self._no_parquet(files))
        if not configurations:
            folders = from_folders(file.path for file in found)
            chosen = set(choose(folders, subset or "default", repository=self.name))
            found = [file for file in found if literal(file.path) in chosen]
        return [
            HubEntry(self.name, file.path, self._commit, file.lfs.sha256 if file.lfs else file.blob_id, file.size)
            for file in found
        ]

    def _described(self) -> list[Configuration]:
        """The configurations that the README names."""
        from huggingface_hub import DatasetCard
        from huggingface_hub.errors import EntryNotFoundError

        try:
            readme = with_retries(self._readme, waits=_WAITS_SECONDS)
        except EntryNotFoundError:
            return []
        try:
            return from_readme(vars(DatasetCard(readme, ignore_metadata_errors=True).data))
        except ValueError as error:
            raise UserError(
                f"The README of the data set {self.name} cannot be understood: {error}. "
                f"Download its files (hf download --repo-type dataset {self.name}) and give the folder."
            ) from error

    def _readme(self) -> str:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(self.name, "README.md", repo_type="dataset", revision=self._commit, endpoint=endpoint())
        response = get_session().get(url, headers=build_hf_headers(), timeout=_ANSWER_SECONDS)
        hf_raise_for_status(response)
        return response.text

    def _matching(self, patterns: Sequence[str]) -> list["RepoFile"]:
        """The files that one of the patterns matches, as `datasets` understands them."""
        from fsspec.utils import glob_translate

        roots = {root_of(pattern) for pattern in patterns}
        outer = [root for root in sorted(roots) if not any(f"{root}/".startswith(f"{o}/") for o in roots - {root})]
        matches = [re.compile(glob_translate(pattern)).match for pattern in patterns]
        listed = {file.path: file for root in ([""] if "" in roots else outer) for file in self._list(root)}
        return [file for path, file in listed.items() if any(match(path) for match in matches)]

    def _list(self, folder: str) -> Iterator["RepoFile"]:
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        try:
            entries = self._api.list_repo_tree(
                self.name, folder or None, recursive=True, revision=self._commit, repo_type="dataset"
            )
            yield from (entry for entry in entries if isinstance(entry, RepoFile))
        except EntryNotFoundError:
            return

    def _no_parquet(self, files: Sequence["RepoFile"]) -> str:
        endings = Counter(".".join(["", *file.path.rsplit("/", 1)[-1].split(".")[1:]]) for file in files)
        found = ", ".join(f"{count:,} {ending or 'without an ending'}" for ending, count in endings.most_common(5))
        return (
            f"The data set {self.name} holds no Parquet file there, but {found or 'nothing'}. The hub keeps a Parquet "
            f"copy of many: try {self.name}@refs/convert/parquet, with --subset where it has several configurations; "
            f"or download it (hf download --repo-type dataset {self.name}) and give the folder."
        )
