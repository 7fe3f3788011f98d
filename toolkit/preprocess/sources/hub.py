"""Data sets on the hub: from a name and a configuration to the Parquet files of one commit.

Configurations come from the data set's README, read and resolved by the `datasets` library, so that a name means the
same files here as in `datasets`. A repository whose README names no configurations has one for each of its folders.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenization.hub import HubName, endpoint
from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.preprocess.sources.source import (
    OTHER_KIND,
    Format,
    Source,
    format_of,
    is_hidden,
    kinds_of,
    report_left_out,
    split_of,
)
from toolkit.storage.hub import TIMEOUT_SECONDS, dataset_snapshot, hub_errors, list_with_retries

_SHORT_NAMES = {"fineweb-edu": "HuggingFaceFW/fineweb-edu"}
_MOST_NAMES = 30

SplitFiles = Mapping[str, Sequence[str]]
"""Paths, or path patterns, by split name."""


def parse_hub_name(name: str) -> HubName | None:
    """The data set that a name stands for: a short name, or organisation/name, with @revision if it is not `main`."""
    parsed = HubName.parse(_SHORT_NAMES.get(name, name).removeprefix("datasets/"))
    return parsed if parsed is not None and "/" in parsed.repository else None


def find_on_hub(name: HubName, *, subset: str | None) -> list[Source]:
    """Find the Parquet files of one configuration of a data set, sorted by path.

    `subset` is the configuration, with a split after a colon if it is not `train`; None if there is only one.
    """
    with hub_errors(f"the data set {name}", alternative="give files or folders on this machine as sources"):
        repository = _Repository(name)
        # On a retry, what is already listed comes from memory.
        return list_with_retries(lambda: repository.find(subset))


class _Repository:
    """A data set on the hub, at the current commit of a revision."""

    def __init__(self, name: HubName) -> None:
        from datasets import DownloadConfig
        from fsspec.core import url_to_fs

        self._name, self._repository = name, name.repository
        self._commit = dataset_snapshot(self._repository, name.revision or "main").commit
        self._root = f"datasets/{self._repository}@{self._commit}"
        options = {"endpoint": endpoint(), "token": None}
        self._files: Any = url_to_fs(f"hf://{self._root}", **options)[0]
        self._download_config = DownloadConfig(storage_options={"hf": options})

    def find(self, subset: str | None) -> list[Source]:
        described = self._described()
        if described:
            configuration, wanted_split = _choose(list(described), subset, repository=self._repository)
            patterns, folder = self._patterns(described[configuration])
            paths = self._resolve(_split(patterns, wanted_split, configuration, repository=self._repository), folder)
        else:
            everything = (path.removeprefix(f"{self._root}/") for path in self._files.find(self._root))
            paths = [path for path in everything if not is_hidden(path)]
        found = [path for path in paths if path.endswith(".parquet")]
        if not found:
            raise UserError(self._no_parquet(paths))
        if not described:
            folders = _folders(found)
            configuration, wanted_split = _choose(list(folders), subset or "default", repository=self._repository)
            splits = _by_split(folders[configuration])
            found = [*_split(splits, wanted_split, configuration, repository=self._repository)]
        # If no README names configurations, only files with rows are reported: most repositories have other files.
        others = {path for path in paths if not path.endswith(".parquet") and (described or format_of(path))}
        report_left_out(dict.fromkeys(others, OTHER_KIND), place=f" in the data set {self._name}")
        return [self._source(path) for path in sorted(set(found))]

    def _described(self) -> Mapping[str, Mapping[str, Any]]:
        """Parameters of the configurations in the README, by name."""
        from datasets.utils.metadata import MetadataConfigs
        from huggingface_hub import DatasetCard
        from huggingface_hub.errors import EntryNotFoundError

        try:
            readme = self._readme()
        except EntryNotFoundError:
            return {}
        try:
            described = MetadataConfigs.from_dataset_card_data(DatasetCard(readme, ignore_metadata_errors=True).data)
            return {str(name): parameters for name, parameters in described.items()}
        except (ValueError, TypeError, AttributeError) as error:
            message = " ".join(str(error).split())
            raise UserError(
                f"invalid README of the data set {self._repository}: {message[:200]}. Download its files "
                f"(hf download --repo-type dataset {self._repository}) and give the folder."
            ) from error

    def _readme(self) -> str:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(self._repository, "README.md", repo_type="dataset", revision=self._commit, endpoint=endpoint())
        response = get_session().get(url, headers=build_hf_headers(), timeout=TIMEOUT_SECONDS)
        hf_raise_for_status(response)
        return response.text

    def _patterns(self, parameters: Mapping[str, Any]) -> tuple[SplitFiles, str]:
        """The patterns of a configuration, and the folder that they are relative to."""
        from datasets.data_files import get_data_patterns, sanitize_patterns

        folder = f"hf://{self._root}/{parameters.get('data_dir') or ''}".rstrip("/")
        if parameters.get("data_files"):
            return sanitize_patterns(parameters["data_files"]), folder
        return get_data_patterns(folder, self._download_config), folder

    def _resolve(self, patterns: Sequence[str], folder: str) -> list[str]:
        from datasets.data_files import resolve_pattern

        found: list[str] = []
        for pattern in patterns:
            try:
                found += resolve_pattern(pattern, folder, download_config=self._download_config)
            except FileNotFoundError:  # this pattern matches nothing; others may
                continue
        return [path.removeprefix(f"hf://{self._root}/") for path in found]

    def _source(self, path: str) -> Source:
        file = self._files.info(f"{self._root}/{path}")
        version = file["lfs"].sha256 if file["lfs"] else file["blob_id"]
        name = f"hub://{self._repository}/{path}"
        return Source(name, Format.PARQUET, file["size"], version, self._commit)

    def _no_parquet(self, paths: Sequence[str]) -> str:
        return (
            f"the data set {self._repository} has no Parquet files (found: {kinds_of(paths) or 'none'}). The hub keeps "
            f"a Parquet copy of many: try {self._repository}@refs/convert/parquet, with --subset where it has several "
            f"configurations; or download it (hf download --repo-type dataset {self._repository}) and give the folder."
        )


def _folders(paths: Iterable[str]) -> dict[str, list[str]]:
    """The configurations of a repository whose README names none: its folders with their files, and `default`.

    A folder sample/10BT is named sample/10BT, sample-10BT and 10BT, except for names that another folder has too.
    `default` is the folder data if it exists, else everything.
    """
    paths = sorted(paths)
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folders["/".join(parts[:depth])].append(path)
    names: dict[str, set[str]] = defaultdict(set)
    for folder in folders:
        for name in (folder, folder.replace("/", "-"), folder.rsplit("/", 1)[-1]):
            names[name].add(folder)
    files = {name: folders[found.copy().pop()] for name, found in names.items() if len(found) == 1}
    return {"default": folders.get("data") or paths} | files


def _by_split(paths: Sequence[str]) -> SplitFiles:
    """Paths by the split in their folders, else in their file name (convention of `datasets`), else `train`."""
    splits: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        splits[split_of(path) or "train"].append(path)
    return splits


def _choose(names: Sequence[str], subset: str | None, *, repository: str) -> tuple[str, str]:
    shown = first_few(names, _MOST_NAMES)
    if subset is None and len(names) > 1:
        raise UserError(f"the data set {repository} has several configurations. Name one with --subset: {shown}.")
    subset = names[0] if subset is None else subset
    name, split = (subset, "") if subset in names or ":" not in subset else subset.rpartition(":")[::2]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"the data set {repository} has no configuration {name!r}.{guess} It has: {shown}.")
    return name, split


def _split(splits: SplitFiles, wanted: str, configuration: str, *, repository: str) -> Sequence[str]:
    """The files or patterns of one split: the wanted one, else `train`, else the only one."""
    wanted = wanted or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if wanted not in splits:
        raise UserError(
            f"the configuration {configuration} of {repository} has no split {wanted!r}. Name one of its splits with "
            f"--subset: {first_few([f'{configuration}:{split}' for split in splits], _MOST_NAMES)}."
        )
    return splits[wanted]
