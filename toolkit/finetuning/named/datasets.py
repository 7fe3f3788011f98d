"""Named data sets: the paper's twelve, from the Hugging Face hub to local files that a family of tasks reads.

A set is a declaration in datasets.toml. Its rows are read once and written, in the form in which its family reads
files, to the user's cache folder, under a key of what is declared and of the repositories' commits.
"""

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolkit.core.cache import digest_of
from toolkit.core.console import console
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import atomic_directory, cache_folder
from toolkit.core.locks import locked_file
from toolkit.core.settings import nearest
from toolkit.finetuning.named.hub_rows import Hub, HubRows
from toolkit.finetuning.named.published_forms import (
    AnsweredQuestions,
    ClassifiedTexts,
    ClozeQuestions,
    PublishedForm,
    TaggedWords,
)
from toolkit.finetuning.named.published_retrieval import BeirRepositories, HalvedBeirRepositories, PassagesInRows
from toolkit.finetuning.protocol import PROTOCOLS
from toolkit.finetuning.settings import FinetuningSettings, Split

_KINDS: Mapping[str, type[PublishedForm]] = {
    "texts": ClassifiedTexts,
    "words": TaggedWords,
    "questions": AnsweredQuestions,
    "cloze": ClozeQuestions,
    "beir": BeirRepositories,
    "halved-beir": HalvedBeirRepositories,
    "passages": PassagesInRows,
}
"""Forms, as datasets.toml calls them."""
_FORM_VERSION = 2
"""Goes up with every change of what is written, so that older files are not used."""
_ORIGIN = "origin.json"

SettingsT = TypeVar("SettingsT", bound=FinetuningSettings)


@dataclass(frozen=True)
class NamedDataset:
    """A data set that is known by name.

    `forms` are what each split is read from, by protocol: `standard`, and `paper` where it differs; `paper_settings`
    those of the paper's runs on this set, where they differ from the family's.
    """

    name: str
    task: str
    forms: Mapping[str, Mapping[Split, PublishedForm]]
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, given: SettingsT, *, shared: Collection[str] = ()) -> SettingsT:
        """The settings of a run, with this set's own where none are given.

        `shared` are keys that are given for other data sets too: the set's own number takes their place.
        """
        if given.protocol != "paper":
            return given
        chosen = given.model_dump(exclude_unset=True)
        if "epochs" in self.paper_settings and "steps" in shared:
            del chosen["steps"]
        own = {key: value for key, value in self.paper_settings.items() if not (key == "epochs" and "steps" in chosen)}
        return type(given).model_validate(own | chosen)

    def fetch(self, protocol: str) -> dict[Split, Path]:
        """Local files of the splits, read from the hub where the cache does not have them."""
        forms, hub = self.splits(protocol), Hub()
        folders = {form.name: _local_folder(form, hub) for form in forms.values()}
        return {split: folders[form.name] / form.files[split] for split, form in forms.items()}

    def cached(self, protocol: str) -> dict[Split, Path]:
        """The newest files of the splits in the cache; the hub is not asked. None of them where one is missing."""
        forms = self.splits(protocol)
        folders = {form.name: folder for form in forms.values() if (folder := _newest_copy(form)) is not None}
        if any(form.name not in folders for form in forms.values()):
            return {}
        return {split: folders[form.name] / form.files[split] for split, form in forms.items()}

    def splits(self, protocol: str) -> Mapping[Split, PublishedForm]:
        """Form of each split under a protocol."""
        return self.forms.get(protocol, self.forms["standard"])


def named_dataset(name: str, *, task: str) -> NamedDataset:
    """Look up a data set by name, for a family."""
    if name not in DATASETS:
        raise SettingsError(
            f"unknown data set {name!r}.{nearest(name, DATASETS)} Choose one of: {', '.join(DATASETS)}."
        )
    dataset = DATASETS[name]
    if dataset.task != task:
        fitting = [other.name for other in DATASETS.values() if other.task == task]
        other = f", or choose one of {task}: {', '.join(fitting)}" if fitting else ""
        raise SettingsError(
            f"the data set {name} is for the task {dataset.task}, not for {task}. Use `toolkit finetune {dataset.task}`"
            f"{other}."
        )
    return dataset


def _local_folder(form: PublishedForm, hub: Hub) -> Path:
    """The folder with a form's files: the one of the repositories' present commits, or else the newest there is."""
    root = _cache()
    try:
        commits = hub.commits(form.rows.values())
    except UserError as error:
        copy = _newest_copy(form)
        if copy is None:
            raise
        console().print(f"{error}\nusing the copy that was read before: {copy}")
        return copy
    folder = root / _key(form, commits) / form.name
    with locked_file(root / f".{form.name}.lock"):
        if not folder.is_dir():
            folder.parent.mkdir(exist_ok=True)
            with atomic_directory(folder) as unfinished:
                form.write(hub, unfinished)
                origin = {"commits": commits, "rows": [str(source) for source in form.rows.values()]}
                (unfinished / _ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
            console().print(f"written to {folder}")
    return folder


def _cache() -> Path:
    return cache_folder() / "datasets"


def _newest_copy(form: PublishedForm) -> Path | None:
    """The folder with a form's files that was written last; not one that an older version wrote in another form."""
    found = sorted(_cache().glob(f"*/{form.name}/{_ORIGIN}"), key=lambda path: path.stat().st_mtime)
    origins = ((path, json.loads(path.read_text(encoding="utf-8"))) for path in found)
    copies = [path.parent for path, origin in origins if path.parent.parent.name == _key(form, origin["commits"])]
    return copies[-1] if copies else None


def _key(form: PublishedForm, commits: Mapping[str, str]) -> str:
    return digest_of([_FORM_VERSION, repr(form), commits])[:12]


def _declared() -> Iterator[NamedDataset]:
    declared = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
    forms = {name: _form(name, **keys) for name, keys in declared["forms"].items()}
    for name, keys in declared["sets"].items():
        splits = {
            protocol: {Split(split): forms[form] for split, form in keys.pop(protocol).items()}
            for protocol in PROTOCOLS
            if protocol in keys
        }
        yield NamedDataset(name, forms={"standard": dict.fromkeys(forms[name].files, forms[name])} | splits, **keys)


def _form(name: str, *, kind: str, rows: Mapping[str, Any], **options: Any) -> PublishedForm:
    return _KINDS[kind](name, {use: HubRows(**source) for use, source in rows.items()}, **options)


DATASETS: Mapping[str, NamedDataset] = {dataset.name: dataset for dataset in _declared()}
"""The data sets by name."""
