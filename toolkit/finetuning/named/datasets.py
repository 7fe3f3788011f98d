"""Named data sets: the paper's twelve and NanoBEIR, from the Hugging Face hub to the input of a family of tasks.

A set is declared in datasets.toml. Its files are in the cache of the hub's client; a note of our own lists them, for
machines that cannot reach the hub.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolkit.core.cache import CachedResult
from toolkit.core.console import console
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.settings import nearest
from toolkit.finetuning.named.hub_rows import Hub, HubRows
from toolkit.finetuning.named.published_forms import (
    AnsweredQuestions,
    ClassifiedTexts,
    ClozeQuestions,
    DataFile,
    LocalFiles,
    PublishedForm,
    PublishedSplit,
    TaggedWords,
)
from toolkit.finetuning.named.published_retrieval import (
    BeirRepositories,
    HalvedBeirRepositories,
    NanoBeir,
    PassagesInRows,
)
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
"""Forms by their name in datasets.toml."""

SettingsT = TypeVar("SettingsT", bound=FinetuningSettings)


@dataclass(frozen=True)
class NamedDataset:
    """A data set known by name.

    `forms` are the sources of the splits by protocol: `standard`, and `paper` if it differs; `paper_settings` are the
    settings of the paper's runs on this set that differ from the family's.
    """

    name: str
    task: str
    forms: Mapping[str, Mapping[Split, PublishedForm]]
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, given: SettingsT, *, shared: Collection[str] = ()) -> SettingsT:
        """The settings of a run, with this set's own for those not given.

        `shared` are keys given for other data sets too: if `steps` is one, the set's own `epochs` replace it.
        """
        if given.protocol != "paper":
            return given
        chosen = given.model_dump(exclude_unset=True)
        if "epochs" in self.paper_settings and "steps" in shared:
            del chosen["steps"]
        own = {key: value for key, value in self.paper_settings.items() if not (key == "epochs" and "steps" in chosen)}
        return type(given).model_validate(own | chosen)

    def check_given(self, given: Collection[Split], protocol: str, *, needed: Collection[Split]) -> None:
        """Refuse given splits that the set has itself, and needed splits that are neither in the set nor given."""
        own = self.splits(protocol)
        if twice := " and ".join(split for split in given if split in own):
            raise SettingsError(
                f"the data set {self.name} has files of its own, but {twice} is given too. Leave out {twice}, or the "
                "data set."
            )
        if not {*needed} <= {*own, *given}:
            raise SettingsError(
                f"the data set {self.name} has no training split. Give train, or steps = 0 to score a model as it is."
            )

    def fetch(self, protocol: str) -> dict[Split, DataFile]:
        """Sources of the splits, downloaded from the hub unless its client has them cached."""
        forms, hub = self.splits(protocol), Hub()
        files = {form.name: _fetched(form, hub) for form in forms.values()}
        return {split: PublishedSplit(form, split, files[form.name]) for split, form in forms.items()}

    def cached(self, protocol: str) -> dict[Split, DataFile]:
        """Sources of the splits as last downloaded, without asking the hub; empty if one is missing."""
        files = {split: (form, _noted(form)) for split, form in self.splits(protocol).items()}
        known = {split: PublishedSplit(form, split, local) for split, (form, local) in files.items() if local}
        return dict(known) if len(known) == len(files) else {}

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
        fitting = known_datasets(task)
        other = f", or choose one of {task}: {', '.join(fitting)}" if fitting else ""
        raise SettingsError(
            f"the data set {name} is for the task {dataset.task}, not for {task}. Use `toolkit finetune {dataset.task}`"
            f"{other}."
        )
    return dataset


def known_datasets(task: str) -> list[str]:
    """Names of the data sets of a family."""
    return [dataset.name for dataset in DATASETS.values() if dataset.task == task]


def _fetched(form: PublishedForm, hub: Hub) -> LocalFiles:
    """Files of the repositories' current commits; if that fails, those fetched last."""
    try:
        files = {use: hub.fetch(source) for use, source in form.rows.items()}
    except UserError as error:
        noted = _noted(form)
        if noted is None:
            raise
        console().print(f"{error}\nusing the copy of {form.name} that was fetched before")
        return noted
    _note(form).write({use: [str(file) for file in local] for use, local in files.items()})
    return files


def _note(form: PublishedForm) -> CachedResult:
    return CachedResult(f"datasets/{form.name}", repr(form))


def _noted(form: PublishedForm) -> LocalFiles | None:
    """The files fetched last; None if one is missing."""
    noted = _note(form).read()
    files = {use: [Path(file) for file in local] for use, local in (noted or {}).items()}
    return files if noted and all(file.is_file() for local in files.values() for file in local) else None


def _declared() -> Iterator[NamedDataset]:
    declared = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
    forms = {name: _form(name, **keys) for name, keys in declared["forms"].items()}
    for name, keys in declared["sets"].items():
        splits = {
            protocol: {Split(split): forms[form] for split, form in keys.pop(protocol).items()}
            for protocol in ("standard", "paper")
            if protocol in keys
        }
        yield NamedDataset(name, forms={"standard": dict.fromkeys(forms[name].splits, forms[name])} | splits, **keys)
    repository, sets = declared["nanobeir"]["repository"], declared["nanobeir"]["sets"]
    for name, chosen in {"nanobeir": sets, **{f"nanobeir-{one.lower()}": [one] for one in sets}}.items():
        rows = {
            f"Nano{one}/{part}": HubRows(repository, f"Nano{one}", part)
            for one in chosen
            for part in ("corpus", "queries", "qrels")
        }
        yield NamedDataset(name, "ir", {"standard": {Split.TEST: NanoBeir(name, rows)}})


def _form(name: str, *, kind: str, rows: Mapping[str, Any], **options: Any) -> PublishedForm:
    return _KINDS[kind](name, {use: HubRows(**source) for use, source in rows.items()}, **options)


DATASETS: Mapping[str, NamedDataset] = {dataset.name: dataset for dataset in _declared()}
"""The data sets by name."""
