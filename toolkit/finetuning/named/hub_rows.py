"""Rows of data sets on the Hugging Face hub, from files in the client's own cache; code of a repository is never run.

A repository is read at one commit. If it still has a loading script, its data files are named in `HubRows`, or the
hub's own Parquet copy of the repository is read (the branch refs/convert/parquet).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from tokenization.hub import endpoint
from toolkit.core.console import progress, quiet_transformers
from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.finetuning.ir.beir import read_json_lines
from toolkit.storage.hub import Snapshot, dataset_snapshot, hub_errors
from toolkit.tables import iterate_rows, read_table

PARQUET_COPY = "refs/convert/parquet"
OWN_FILES = "The repository has changed; give files of your own (--train and --test, in place of --dataset)."

HubRow = Mapping[str, Any]


@dataclass(frozen=True)
class HubRows:
    """A split of a data set on the hub.

    Attributes:
        configuration: name of the configuration; None if there is only one.
        files: paths or patterns of the split's files, all of one format; empty if the repository declares them.
    """

    repository: str
    split: str
    configuration: str | None = None
    files: Sequence[str] = ()

    def __str__(self) -> str:
        parts = (self.repository, self.configuration, self.split)
        return " ".join(part for part in parts if part is not None)

    def read(self, files: Sequence[Path], *columns: str) -> Iterator[HubRow]:
        """Yield the rows of local files, which must have these columns."""
        rows = (row for file in files for row in _rows(file))
        first = next(rows, None)
        if first is None:
            raise UserError(f"{self} has no rows. {OWN_FILES}")
        if missing := [name for name in columns if name not in first]:
            found = ", ".join(map(repr, first)) or "none"
            raise UserError(f"{self}: no column {' or '.join(map(repr, missing))}; found: {found}. {OWN_FILES}")
        yield first
        yield from rows


def _rows(file: Path) -> Iterator[HubRow]:
    """Yield the rows of a file; Parquet and JSON lines, which may be large, are streamed."""
    if file.suffix == ".parquet":
        with file.open("rb") as opened:
            yield from (row for _, row in iterate_rows(str(file), ".parquet", opened))
    elif file.suffix == ".tsv":
        yield from read_table(file).rows
    else:
        yield from (row for _, row in read_json_lines(file))


@dataclass
class Hub:
    """The hub, with every repository pinned to its commit at the first request."""

    _snapshots: dict[tuple[str, str], Snapshot] = field(default_factory=dict)

    def fetch(self, source: HubRows) -> list[Path]:
        """Local files of a split, in the hub client's cache."""
        from huggingface_hub import hf_hub_download

        location, paths = self._locate(source), list[Path]()
        options: dict[str, Any] = {"repo_type": "dataset", "revision": location.commit, "endpoint": endpoint()}
        with progress(f"reading {source}", total=len(location.files), unit="files") as shown:
            for file in location.files:
                with _errors_naming(source.repository), quiet_transformers():
                    paths.append(Path(hf_hub_download(source.repository, file, **options)))
                shown.update(len(paths))
        return paths

    def _locate(self, source: HubRows) -> Snapshot:
        """Commit and files of the rows."""
        found, patterns = self._snapshot(source.repository, "main"), source.files
        if not patterns and f"{source.repository.rpartition('/')[2]}.py" not in found.files:
            return Snapshot(found.commit, _declared_files(source, found.commit))
        if not patterns:
            found = self._snapshot(source.repository, PARQUET_COPY)
            patterns = (f"{source.configuration or 'default'}/{source.split}/*.parquet",)
        files = tuple(file for pattern in patterns for file in found.files if fnmatchcase(file, pattern))
        if not files:
            raise UserError(
                f"the data set {source.repository} has no files {' or '.join(patterns)} (commit {found.commit[:12]}; "
                f"found: {first_few(found.files)}). {OWN_FILES}"
            )
        return Snapshot(found.commit, files)

    def _snapshot(self, repository: str, revision: str) -> Snapshot:
        if (repository, revision) not in self._snapshots:
            with _errors_naming(repository if revision == "main" else f"{repository}@{revision}"):
                self._snapshots[repository, revision] = dataset_snapshot(repository, revision)
        return self._snapshots[repository, revision]


def _declared_files(source: HubRows, commit: str) -> tuple[str, ...]:
    """The files that the repository itself declares for a split."""
    data_files = _files_by_split(source.repository, source.configuration, commit)
    if source.split not in data_files:
        raise UserError(f"{source}: no such split; found: {first_few([*data_files])}. {OWN_FILES}")
    return tuple(url.removeprefix(f"hf://datasets/{source.repository}@{commit}/") for url in data_files[source.split])


@cache
def _files_by_split(repository: str, configuration: str | None, commit: str) -> Mapping[str, Sequence[str]]:
    from datasets import disable_progress_bars, load_dataset_builder

    disable_progress_bars()
    # Quieting transformers also quiets the hub's client.
    with _errors_naming(repository), quiet_transformers():
        return load_dataset_builder(repository, configuration, revision=commit).config.data_files or {}


def _errors_naming(name: str) -> AbstractContextManager[None]:
    own = "give files of your own (--train and --test, in place of --dataset)"
    return hub_errors(f"the data set {name}", alternative=own)
