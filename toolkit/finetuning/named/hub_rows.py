"""Rows of data sets on the Hugging Face hub, streamed through `datasets`; code of a repository is never run.

A repository is read at one commit. Where it still has a loading script, which `datasets` runs no longer, its data files
are named, or the hub's own Parquet copy of the repository is read (the branch refs/convert/parquet).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tokenization.hub import endpoint
from toolkit.core.console import progress, quiet_transformers
from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.hub import Snapshot, dataset_snapshot, hub_errors

PARQUET_COPY = "refs/convert/parquet"

_ALTERNATIVE = "give files of your own (--train and --test, in place of --dataset)"
_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".jsonl.gz": "json"}
_BATCH_ROWS = 1000

HubRow = Mapping[str, Any]


@dataclass(frozen=True)
class HubRows:
    """A split of a data set on the hub.

    Attributes:
        configuration: its name there; None for the only one.
        files: paths or patterns of the split's files, all of one format; none where the repository says it itself.
    """

    repository: str
    split: str
    configuration: str | None = None
    files: Sequence[str] = ()

    def __str__(self) -> str:
        parts = (self.repository, self.configuration, self.split)
        return " ".join(part for part in parts if part is not None)


@dataclass(frozen=True)
class OpenRows:
    """Rows that are read as they are iterated over."""

    source: HubRows
    dataset: Any

    def read(self, *columns: str) -> Iterator[HubRow]:
        """The rows, with a count on the screen."""
        # Whole tables: `datasets` takes several times as long for single rows.
        tables, number = iter(self.dataset.with_format("arrow").iter(batch_size=_BATCH_ROWS)), 0
        with progress(f"reading {self.source}", total=None, unit="rows") as shown:
            while True:
                with _errors_naming(self.source.repository):
                    table = next(tables, None)
                if table is None:
                    break
                self._check_columns(columns, table.column_names)
                number += len(table)
                shown.update(number)
                yield from table.select(columns).to_pylist()
        if number == 0:
            raise UserError(f"{self.source} has no rows. The repository has changed; {_ALTERNATIVE}.")

    def class_names(self, column: str) -> list[str]:
        """Names of the classes of a column of numbers, or of lists of them."""
        features: Mapping[str, Any] = self.dataset.features or {}
        self._check_columns((column,), features)
        feature = features[column]
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if names is None:
            raise UserError(
                f"{self.source}: the classes of the column {column!r} have no names. The repository has changed; "
                f"{_ALTERNATIVE}."
            )
        return list(names)

    def _check_columns(self, columns: Sequence[str], found: Iterable[str]) -> None:
        missing = [name for name in columns if name not in found]
        if missing:
            raise UserError(
                f"{self.source}: no column {' or '.join(map(repr, missing))}; found: "
                f"{', '.join(map(repr, found)) or 'none'}. The repository has changed; {_ALTERNATIVE}."
            )


@dataclass
class Hub:
    """The hub, with every repository at the commit at which it was first asked for."""

    _snapshots: dict[tuple[str, str], Snapshot] = field(default_factory=dict)

    def commits(self, sources: Iterable[HubRows]) -> dict[str, str]:
        """The commit of each repository that `open` would read."""
        return {source.repository: self._locate(source).commit for source in sources}

    def open(self, source: HubRows) -> OpenRows:
        """Open the rows of a split."""
        from datasets import load_dataset

        location = self._locate(source)
        with _errors_naming(source.repository), _quiet_datasets():
            if not location.files:
                dataset = load_dataset(
                    source.repository,
                    source.configuration,
                    split=str(source.split),
                    revision=location.commit,
                    streaming=True,
                )
            else:
                root = f"hf://datasets/{source.repository}@{location.commit}"
                urls = [f"{root}/{path}" for path in location.files]
                dataset = load_dataset(_builder(source, location.files), data_files=urls, split="train", streaming=True)
        return OpenRows(source, dataset)

    def read_json(self, source: HubRows, path: str) -> Any:
        """A JSON file of a repository, at the commit of its rows."""
        from huggingface_hub import hf_hub_download

        with _errors_naming(source.repository), _quiet_datasets():
            file = hf_hub_download(
                source.repository,
                path,
                repo_type="dataset",
                revision=self._locate(source).commit,
                endpoint=endpoint(),
            )
            return json.loads(Path(file).read_text(encoding="utf-8"))

    def _locate(self, source: HubRows) -> Snapshot:
        """The commit of rows, and their files; none where the repository says itself which they are."""
        found, patterns = self._snapshot(source.repository, "main"), source.files
        if not patterns:
            if f"{source.repository.rpartition('/')[2]}.py" not in found.files:
                return Snapshot(found.commit, ())
            found = self._snapshot(source.repository, PARQUET_COPY)
            patterns = (f"{source.configuration or 'default'}/{source.split}/*.parquet",)
        files = tuple(file for pattern in patterns for file in found.files if fnmatchcase(file, pattern))
        if not files:
            raise UserError(
                f"the data set {source.repository} has no files {' or '.join(patterns)} (commit {found.commit[:12]}; "
                f"found: {first_few(found.files)}). The repository has changed; {_ALTERNATIVE}."
            )
        return Snapshot(found.commit, files)

    def _snapshot(self, repository: str, revision: str) -> Snapshot:
        if (repository, revision) not in self._snapshots:
            with _errors_naming(repository if revision == "main" else f"{repository}@{revision}"):
                self._snapshots[repository, revision] = dataset_snapshot(repository, revision)
        return self._snapshots[repository, revision]


def _builder(source: HubRows, paths: Sequence[str]) -> str:
    formats = {builder for path in paths for ending, builder in _BUILDERS.items() if path.endswith(ending)}
    assert len(formats) == 1, source
    return formats.pop()


def _errors_naming(name: str) -> AbstractContextManager[None]:
    return hub_errors(f"the data set {name}", alternative=_ALTERNATIVE)


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Keep the progress bars of `datasets` and its client off the screen inside the block."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        # transformers quiets the client with itself.
        with quiet_transformers():
            yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
