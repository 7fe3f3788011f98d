"""Named data sets: the paper's twelve, from the Hugging Face hub to local files that a family of tasks reads.

A set is a declaration. Its rows are read once and written, in the form in which its family reads files, to the user's
cache folder, under a key of what is declared and of the repositories' commits.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
from toolkit.finetuning.named.published_retrieval import (
    BeirRepositories,
    Corpus,
    HalvedBeirRepositories,
    PassagesInRows,
)
from toolkit.finetuning.settings import FinetuningSettings, Split

_FORM_VERSION = 1
"""Goes up with every change of what is written, so that older files are not used."""
_ORIGIN = "origin.json"

SettingsT = TypeVar("SettingsT", bound=FinetuningSettings)


@dataclass(frozen=True)
class NamedDataset:
    """A data set that is known by name.

    Attributes:
        name: on the command line and in results.
        task: name of its family.
        standard: what each split is read from.
        paper: the same under the paper's protocol, where it differs.
        paper_settings: settings of the paper's runs on this set, where they differ from the family's.
    """

    name: str
    task: str
    standard: Mapping[Split, PublishedForm]
    paper: Mapping[Split, PublishedForm] | None = None
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, given: SettingsT, *, shared: Collection[str] = ()) -> SettingsT:
        """The settings of a run, with this set's own where none are given.

        Args:
            given: for the run.
            shared: keys of it that are given for other data sets too: the set's own number takes their place.
        """
        if given.protocol != "paper":
            return given
        chosen = given.model_dump(exclude_unset=True)
        if "epochs" in self.paper_settings and "steps" in shared:
            del chosen["steps"]
        own = {key: value for key, value in self.paper_settings.items() if not (key == "epochs" and "steps" in chosen)}
        return type(given).model_validate(own | chosen)

    def fetch(self, protocol: str) -> dict[Split, Path]:
        """Local files of the splits, read from the hub where the cache does not have them.

        Raises:
            UserError: the hub cannot be read and the cache has no copy.
        """
        forms, hub = self.splits(protocol), Hub()
        folders = {form.name: _local_folder(form, hub) for form in forms.values()}
        return {split: folders[form.name] / form.files[split] for split, form in forms.items()}

    def cached(self, protocol: str) -> dict[Split, Path]:
        """The newest files of the splits in the cache; the hub is not asked. None of them where one is missing."""
        forms = self.splits(protocol)
        folders = {form.name: _newest_copy(form) for form in forms.values()}
        found = {
            split: folder / form.files[split]
            for split, form in forms.items()
            if (folder := folders[form.name]) is not None
        }
        return found if len(found) == len(forms) else {}

    def splits(self, protocol: str) -> Mapping[Split, PublishedForm]:
        """What each split is read from."""
        return self.paper if protocol == "paper" and self.paper is not None else self.standard


def named_dataset(name: str, *, task: str) -> NamedDataset:
    """The data set of a name, for a family.

    Raises:
        SettingsError: there is none of this name, or it is of another family.
    """
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
        commits = hub.commits(form.sources)
    except UserError as error:
        copy = _newest_copy(form)
        if copy is None:
            raise
        console().print(f"{error}\nusing the copy that was read before: {copy}")
        return copy
    folder = root / _key(form, commits) / form.name
    root.mkdir(parents=True, exist_ok=True)
    with locked_file(root / f".{form.name}.lock"):
        if not folder.is_dir():
            folder.parent.mkdir(exist_ok=True)
            with atomic_directory(folder) as unfinished:
                form.write(hub, unfinished)
                origin = {"commits": commits, "rows": [str(source) for source in form.sources]}
                (unfinished / _ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
            console().print(f"written to {folder}")
    return folder


def _cache() -> Path:
    return cache_folder() / "datasets"


def _newest_copy(form: PublishedForm) -> Path | None:
    """The folder with a form's files that was written last; not one that an older version wrote in another form."""
    found = sorted(_cache().glob(f"*/{form.name}/{_ORIGIN}"), key=lambda path: path.stat().st_mtime)
    copies = [path.parent for path in found if path.parent.parent.name == _key(form, _commits(path))]
    return copies[-1] if copies else None


def _commits(origin: Path) -> dict[str, str]:
    commits: dict[str, str] = json.loads(origin.read_text(encoding="utf-8"))["commits"]
    return commits


def _key(form: PublishedForm, commits: Mapping[str, str]) -> str:
    declared = json.dumps([_FORM_VERSION, repr(form), commits], sort_keys=True)
    return hashlib.sha256(declared.encode()).hexdigest()[:12]


def _all_splits(form: PublishedForm) -> dict[Split, PublishedForm]:
    return dict.fromkeys(form.files, form)


def _glue(configuration: str, split: str) -> HubRows:
    return HubRows("nyu-mll/glue", split, configuration=configuration)


def _tner(repository: str, files: Mapping[Split, str]) -> dict[Split, HubRows]:
    return {split: HubRows(repository, split, files=(f"dataset/{name}",)) for split, name in files.items()}


def _qrels(repository: str, *splits: Split) -> dict[Split, HubRows]:
    return {split: HubRows(repository, split) for split in splits}


def _mldr(name: str) -> HubRows:
    return HubRows("Shitao/MLDR", name, files=(f"mldr-v1.0-en/{name}.jsonl.gz",))


def _record(split: str) -> HubRows:
    return HubRows("aps/super_glue", split, configuration="record")


_UNER = {split: HubRows("BramVanroy/universal_ner", split, configuration="en_ewt") for split in Split}
_MSMARCO_QRELS = _qrels("BeIR/msmarco-qrels", *Split)
_MSMARCO_JUDGED = BeirRepositories("msmarco-judged", "BeIR/msmarco", _MSMARCO_QRELS, Corpus.JUDGED)
_NQ_QRELS = _qrels("BeIR/nq-qrels", Split.TEST)
_MLDR_EVALUATION = {Split.VALIDATION: _mldr("dev"), Split.TEST: _mldr("test")}
_TRAIN_ON_MSMARCO: Mapping[Split, PublishedForm] = {Split.TRAIN: _MSMARCO_JUDGED}

_ALL = (
    NamedDataset(
        "sst2",
        "sc",
        _all_splits(ClassifiedTexts("sst2", _glue("sst2", "train"), _glue("sst2", "validation"), text="sentence")),
    ),
    NamedDataset(
        "qqp",
        "sc",
        _all_splits(
            ClassifiedTexts(
                "qqp", _glue("qqp", "train"), _glue("qqp", "validation"), text="question1", text_pair="question2"
            )
        ),
        paper_settings={"pair_labels": ("Question 1", "Question 2")},
    ),
    NamedDataset(
        "mnli",
        "sc",
        _all_splits(
            ClassifiedTexts(
                "mnli",
                _glue("mnli", "train"),
                _glue("mnli", "validation_matched"),
                text="premise",
                text_pair="hypothesis",
            )
        ),
        paper_settings={"pair_labels": ("Premise", "Hypothesis")},
    ),
    NamedDataset(
        "conll2003",
        "tc",
        _all_splits(
            TaggedWords(
                "conll2003",
                _tner(
                    "tner/conll2003",
                    {Split.TRAIN: "train.json", Split.VALIDATION: "valid.json", Split.TEST: "test.json"},
                ),
                words="tokens",
                tags="tags",
                labels_file="dataset/label.json",
            )
        ),
        paper_settings={"epochs": 1},
    ),
    NamedDataset(
        "ontonotes",
        "tc",
        _all_splits(
            TaggedWords(
                "ontonotes",
                _tner(
                    "tner/ontonotes5",
                    {Split.TRAIN: "train*.json", Split.VALIDATION: "valid.json", Split.TEST: "test.json"},
                ),
                words="tokens",
                tags="tags",
                labels_file="dataset/label.json",
            )
        ),
    ),
    NamedDataset(
        "uner",
        "tc",
        _all_splits(TaggedWords("uner", _UNER, words="tokens", tags="ner_tags")),
        paper_settings={"epochs": 1},
    ),
    NamedDataset(
        "squad",
        "qa",
        _all_splits(
            AnsweredQuestions("squad", HubRows("rajpurkar/squad", "train"), HubRows("rajpurkar/squad", "validation"))
        ),
    ),
    NamedDataset(
        "squad-v2",
        "qa",
        _all_splits(
            AnsweredQuestions(
                "squad-v2",
                HubRows("rajpurkar/squad_v2", "train"),
                HubRows("rajpurkar/squad_v2", "validation"),
                version="2.0",
            )
        ),
    ),
    NamedDataset("record", "qa", _all_splits(ClozeQuestions("record", _record("train"), _record("validation")))),
    NamedDataset(
        "msmarco",
        "ir",
        _all_splits(BeirRepositories("msmarco", "BeIR/msmarco", _MSMARCO_QRELS, Corpus.WHOLE)),
        paper=_all_splits(_MSMARCO_JUDGED),
    ),
    NamedDataset(
        "nq",
        "ir",
        {**_TRAIN_ON_MSMARCO, **_all_splits(BeirRepositories("nq", "BeIR/nq", _NQ_QRELS, Corpus.WHOLE))},
        paper={
            **_TRAIN_ON_MSMARCO,
            **_all_splits(HalvedBeirRepositories("nq-judged", "BeIR/nq", _NQ_QRELS, Corpus.JUDGED)),
        },
    ),
    NamedDataset(
        "mldr",
        "ir",
        {
            **_all_splits(PassagesInRows("mldr-train", {Split.TRAIN: _mldr("train")}, documents=None)),
            **_all_splits(PassagesInRows("mldr", _MLDR_EVALUATION, documents=_mldr("corpus"))),
        },
        paper={
            **_TRAIN_ON_MSMARCO,
            **_all_splits(PassagesInRows("mldr-judged", _MLDR_EVALUATION, documents=None)),
        },
    ),
)

DATASETS: Mapping[str, NamedDataset] = {dataset.name: dataset for dataset in _ALL}
"""The data sets by name."""
