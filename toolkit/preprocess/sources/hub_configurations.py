"""Configurations of a data set on the hub: named sets of files, each with splits, as its README or its folders say."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.core.errors import UserError

_MOST_NAMES = 30
_SPLITS = {
    "validation": "validation|valid|dev|val",
    "test": "test|testing|eval|evaluation",
    "train": "train|training",
}
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Configuration:
    """Some of a data set's files.

    Attributes:
        name: what --subset calls it.
        splits: patterns of paths, by split, in the order of the README.
    """

    name: str
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)


def from_readme(card: Mapping[str, object]) -> list[Configuration]:
    """The configurations in the YAML head of a README.

    Raises:
        ValueError: it is not built as the hub documents it.
    """
    found = []
    entries = card.get("configs") or []
    if not isinstance(entries, list):
        raise ValueError("configs is no list")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise ValueError("an entry of configs has no config_name")
        below = str(entry.get("data_dir") or "").strip("/")
        splits = _splits(entry.get("data_files") or "**")
        found.append(
            Configuration(
                entry["config_name"],
                {split: [_joined(below, pattern) for pattern in patterns] for split, patterns in splits.items()},
            )
        )
    return found


def _splits(data_files: object) -> dict[str, list[str]]:
    if isinstance(data_files, str):
        return {"train": [data_files]}
    if isinstance(data_files, dict):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    if not isinstance(data_files, list):
        raise ValueError("data_files is neither a path nor a list")
    splits: dict[str, list[str]] = defaultdict(list)
    for item in data_files:
        split, paths = (str(item.get("split")), item.get("path")) if isinstance(item, dict) else ("train", item)
        for path in paths if isinstance(paths, list) else [paths]:
            if not isinstance(path, str):
                raise ValueError(f"data_files of the split {split} holds no path")
            splits[split].append(path)
    return dict(splits)


def _joined(folder: str, pattern: str) -> str:
    pattern = pattern.removeprefix("./")
    return f"{folder}/{pattern}" if folder else pattern


def from_folders(paths: Iterable[str]) -> list[Configuration]:
    """The configurations of a repository whose README names none: its folders, and `default`.

    A folder sample/10BT is called that, sample-10BT, and 10BT if no other has the name. `default` is the folder data
    if there is one, else everything.
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
    files = {"default": folders.get("data") or paths} | files
    return [Configuration(name, _by_split(inside)) for name, inside in files.items()]


def _by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        splits[_split(path)].append(literal(path))
    return dict(splits)


def literal(path: str) -> str:
    """The pattern that matches this path alone."""
    return _WILD.sub(lambda found: f"[{found[0]}]", path)


def _split(path: str) -> str:
    """The split that a path names, by the convention of the `datasets` library: folders first, then the file."""
    folder, _, name = path.rpartition("/")
    for part in (folder, name):
        for split, words in _SPLITS.items():
            if re.search(rf"(?:^|[-._ 0-9/])(?:{words})(?:[-._ 0-9/]|$)", part):
                return split
    return "train"


def choose(configurations: Sequence[Configuration], subset: str | None, *, repository: str) -> Sequence[str]:
    """Patterns of the files of one configuration: of its split `train`, or of the one named behind a colon.

    Raises:
        UserError: none of this name, or none is named and there are several.
    """
    names = [configuration.name for configuration in configurations]
    if subset is None and len(names) > 1:
        raise UserError(f"The data set {repository} has several configurations. Name one with --subset: {_list(names)}")
    subset = names[0] if subset is None else subset
    name, split = (subset, "") if subset in names else subset.rpartition(":")[::2] if ":" in subset else (subset, "")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        guess = f" Do you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"The data set {repository} has no configuration {name!r}.{guess} It has: {_list(names)}")
    splits = configurations[names.index(name)].splits
    wanted = split or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if wanted not in splits:
        raise UserError(
            f"The configuration {name} of {repository} has no split {wanted!r}. Name one of its splits with "
            f"--subset: {_list([f'{name}:{split}' for split in splits])}"
        )
    return splits[wanted]


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}."


def root_of(pattern: str) -> str:
    """The folder below which everything lies that a pattern can match; "" for the whole repository."""
    parts = pattern.split("/")
    wild = next((number for number, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    return "/".join(parts[:wild])
