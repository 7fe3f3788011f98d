"""Named data sets: all twelve from a hub on the loopback to local files, and on through the command line."""

import json
import os
import subprocess
import sys
import time
from typing import ClassVar

import pytest
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value

from tests.support.hf_encoders import save_encoder
from tests.support.hub_server import HubServer
from tests.support.named_repositories import CONLL_LABELS, NUM_TRAIN, write_repositories
from toolkit.cli.finetune import help_sections
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import cache_folder
from toolkit.finetuning import FinetuningSettings, Split, get_task
from toolkit.finetuning.named.datasets import DATASETS, NamedDataset, named_dataset
from toolkit.finetuning.named.hub_rows import Hub, HubRows, OpenRows
from toolkit.finetuning.named.published_forms import ClassifiedTexts, ClozeQuestions, PublishedForm, TaggedWords
from toolkit.finetuning.named.published_retrieval import BeirRepositories
from toolkit.finetuning.protocol import split_training
from toolkit.workflows.finetune import finetune

# What the client reads of its environment, it reads when it is imported: hence a process apart, and one for all.
PROGRAM = """
import contextlib, gc, io, json, pathlib, sys

from toolkit.cli import main
from toolkit.finetuning.named.datasets import DATASETS

fetched = {
    protocol: {name: {str(split): str(path) for split, path in dataset.fetch(protocol).items()}
               for name, dataset in DATASETS.items()}
    for protocol in ("standard", "paper")
}
gc.freeze()  # The Trainer collects garbage whenever it starts.
calls = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
    calls.append([code, said.getvalue()])
pathlib.Path("done.json").write_text(json.dumps({"fetched": fetched, "calls": calls}))
"""
RUNS = {"sc": "mnli", "tc": "conll2003", "qa": "squad-v2", "ir": "nq"}
"""Under the paper's protocol."""
STANDARD_RUNS = {"conll2003": "tc", "ontonotes": "tc", "uner": "tc"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `done.json`: where the files of each set are, and how each run of `RUNS` ended."""
    folder = tmp_path_factory.mktemp("named")
    write_repositories(folder / "hub")
    model = save_encoder("eurobert", folder / "model")
    runs = [
        ["finetune", task, str(model), "--dataset", name, "--steps", "2", "--output", task, "--protocol", "paper"]
        for task, name in RUNS.items()
    ]
    runs += [
        ["finetune", task, str(model), "--dataset", name, "--steps", "2", "--output", name]
        for name, task in STANDARD_RUNS.items()
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with HubServer(folder / "hub") as hub:
        environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder)}
        # `python -c` sees the current folder, not the package's.
        environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), environment.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(runs)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def done(place):
    return json.loads((place / "done.json").read_text())


@pytest.fixture(scope="module")
def read(done):
    """The lines of a split of a set."""

    def read(name, split, protocol="standard"):
        with open(done["fetched"][protocol][name][split], encoding="utf-8") as file:
            return file.read().removesuffix("\n").split("\n")

    return read


def rows(lines):
    return [json.loads(line) for line in lines]


def folder_of(done, protocol, name, split):
    qrels = done["fetched"][protocol][name][split]
    return os.path.dirname(os.path.dirname(qrels))


def ids(done, protocol, name, split, file):
    with open(f"{folder_of(done, protocol, name, split)}/{file}") as opened:
        return [json.loads(line)["_id"] for line in opened]


def test_the_help_of_a_task_lists_its_sets():
    listed = [help_sections([task, "--help"])[-1] for task in RUNS]
    assert [title for title, _ in listed] == [f"Data sets of {task} (--dataset NAME)" for task in RUNS]
    names = [name for _, [(row, _)] in listed for name in row.split(", ")]
    assert sorted(names) == sorted(DATASETS)


def test_every_set_has_train_and_test_and_the_name_of_its_folder(done):
    assert list(done["fetched"]["standard"]) == list(DATASETS)
    assert len(DATASETS) == 12
    for protocol, sets in done["fetched"].items():
        for name, files in sets.items():
            # Natural Questions, whole: its published split is the test split, all of it.
            expected = {"train", "test"} if (protocol, name) == ("standard", "nq") else set(map(str, Split))
            assert set(files) == expected
    for name in ("sst2", "conll2003", "squad"):
        assert done["fetched"]["standard"][name]["train"].split("/")[-2] == name
        assert os.path.basename(done["fetched"]["standard"][name]["test"]).startswith("test.")


def test_glue_is_json_lines_with_the_papers_split(read):
    published = [{"text": f"w{n % 7} train ", "label": ("negative", "positive")[n % 2]} for n in range(NUM_TRAIN)]
    train, validation = split_training(NUM_TRAIN)
    assert (len(train), len(validation)) == (38, 3)
    assert rows(read("sst2", "train")) == [published[row] for row in train]
    assert rows(read("sst2", "validation")) == [published[row] for row in validation]
    assert rows(read("sst2", "test"))[1] == {"text": "w1 validation ", "label": "positive"}
    assert read("sst2", "train", "paper") == read("sst2", "train")


def test_pairs_of_glue(read):
    assert rows(read("qqp", "test"))[3] == {"text": "w3 a", "text_pair": "w3 b", "label": "duplicate"}
    matched = {"text": "w2 validation_matched", "text_pair": "w2", "label": "contradiction"}
    assert rows(read("mnli", "test"))[2] == matched
    assert (len(read("mnli", "train")), len(read("mnli", "test"))) == (38, 6)


def test_tagged_words_are_columns(read):
    assert read("conll2003", "validation")[:8] == [
        "w0\tO", "in\tO", f"w5\t{CONLL_LABELS[-1]}", "", "w1\tB-ORG", "in\tO", "w5\tI-LOC", "",
    ]  # fmt: skip
    assert read("conll2003", "train").count("in\tO") == 12
    # Two files of training sentences.
    assert read("ontonotes", "train").count("in\tO") == 24
    assert read("uner", "test")[4:7] == ["w1\tB-PER", "in\tO", "w5\tI-LOC"]


def test_squad_is_json_lines_in_its_columns(read):
    assert rows(read("squad", "test"))[0] == {
        "id": "validation0",
        "context": "w0 is in w1 or w3.",
        "question": "what is w0?",
        "answers": {"text": ["w0", "w3"], "answer_start": [0, 15]},
    }
    parts = dict(zip(("train", "validation"), split_training(NUM_TRAIN), strict=True))
    for split, numbers in parts.items():
        assert [row["id"] for row in rows(read("squad", split))] == [f"train{number}" for number in numbers]
    assert [len(row["answers"]["text"]) for row in rows(read("squad-v2", "test"))] == [2, 0, 2, 0, 2, 0]


def test_record_is_span_extraction(read):
    test = rows(read("record", "test"))
    assert test[1]["context"] == "w1 met Ann.\n@highlight\nAnn left w1 for Bo"
    assert test[1]["question"] == "Then @placeholder saw w1"
    assert test[1]["id"] == "0-1"
    # All mentions count, in the order of the passage; the row names Bo first.
    assert test[1]["answers"] == [
        {"text": "Ann", "answer_start": 7},
        {"text": "Ann", "answer_start": 23},
        {"text": "Bo", "answer_start": 39},
    ]
    assert len(test) == 6


def test_msmarco_is_whole_or_judged(done, read):
    assert len(ids(done, "standard", "msmarco", "test", "corpus.jsonl")) == 60
    # 30 of train, 4 of dev, and 6 of the test split, whose queries share documents.
    judged = [str(n) for n in (*range(34), *range(40, 46))]
    assert ids(done, "paper", "msmarco", "test", "corpus.jsonl") == judged
    assert len(ids(done, "paper", "msmarco", "test", "queries.jsonl")) == 37
    header, first, *_ = read("msmarco", "test", "paper")
    assert (header, first) == ("query-id\tcorpus-id\tscore", "1040\t40\t0")
    assert read("msmarco", "train")[1:3] == ["1000\t0\t1", "1001\t1\t1"]
    assert len(read("msmarco", "validation")) == 5


def test_natural_questions_train_on_msmarco(done, read):
    for protocol in ("standard", "paper"):
        assert done["fetched"][protocol]["nq"]["train"] == done["fetched"]["paper"]["msmarco"]["train"]
    assert len(ids(done, "standard", "nq", "test", "corpus.jsonl")) == 20
    assert len(read("nq", "test")) == 21
    halves = [{line.split("\t")[0] for line in read("nq", split, "paper")[1:]} for split in ("validation", "test")]
    assert [len(half) for half in halves] == [5, 5]
    assert halves[0] | halves[1] == {f"test{n}" for n in range(10)}
    assert len(ids(done, "paper", "nq", "test", "corpus.jsonl")) == 11


def test_mldr_trains_on_its_own_split_or_on_msmarco(done, read):
    assert read("mldr", "train")[1:] == [f"q-en-{n}\tdoc-en-{n}\t1" for n in range(8)]
    assert len(ids(done, "standard", "mldr", "train", "corpus.jsonl")) == 8
    assert len(ids(done, "standard", "mldr", "test", "corpus.jsonl")) == 20
    assert done["fetched"]["paper"]["mldr"]["train"] == done["fetched"]["paper"]["msmarco"]["train"]
    assert ids(done, "paper", "mldr", "test", "corpus.jsonl") == [f"doc-en-{n}" for n in range(8, 14)]
    assert (len(read("mldr", "validation")), len(read("mldr", "test"))) == (3, 5)


def test_no_two_sets_are_read_twice(place):
    written = (place / "said.txt").read_text().split("written to ")[1:]
    # Nine sets of texts; whole MS MARCO, NQ and MLDR; MLDR's own training split; the three with judged documents alone.
    assert len(written) == 9 + 3 + 1 + 3


def test_each_family_is_fine_tuned_by_name(place, done):
    assert [code for code, _ in done["calls"]] == [0] * (len(RUNS) + len(STANDARD_RUNS)), done["calls"]
    for task in RUNS:
        result = json.loads((place / task / "result.json").read_text())
        assert (result["task"], result["dataset"], result["protocol"]) == (task, RUNS[task], "paper")
        assert result["steps"] == 2
        assert result["metric"] in result["test"]
        assert result["metric"] in result["validation"]


@pytest.mark.parametrize("name", STANDARD_RUNS)
def test_every_set_of_tagged_words_is_fine_tuned_by_name(place, read, name):
    result = json.loads((place / name / "result.json").read_text())
    assert (result["dataset"], result["protocol"], result["metric"]) == (name, "standard", "f1")
    assert set(result["test"]) == set(result["validation"]) == {"precision", "recall", "f1"}
    rows = [json.loads(line)["prediction"] for line in (place / name / "predictions.jsonl").read_text().splitlines()]
    sentences = "\n".join(read(name, "test")).rstrip("\n").split("\n\n")
    assert [len(row) for row in rows] == [len(sentence.split("\n")) for sentence in sentences]
    tags = {tag for split in ("train", "test") for line in read(name, split) if line for tag in line.split("\t")[1:]}
    kinds = {tag[2:] for tag in tags - {"O"}}
    assert {tag for row in rows for tag in row} <= {"O", *(f"{letter}-{kind}" for kind in kinds for letter in "BI")}


class Counted(PublishedForm):
    """A form whose file says how often it was written."""

    name = "counted"
    rows: ClassVar = {"train": HubRows("org/name", "train")}

    def __init__(self):
        self.count = 0
        self._files = {Split.TRAIN: "train.txt"}

    @property
    def files(self):
        return self._files

    def write(self, hub, folder):
        self.count += 1
        (folder / "train.txt").write_text(str(self.count))

    def __repr__(self):
        return "Counted()"


class FakeHub:
    """Repositories at a commit, or out of reach."""

    def __init__(self, commit):
        self.commit = commit

    def commits(self, sources):
        if self.commit is None:
            raise UserError("the hub is out of reach")
        return {source.repository: self.commit for source in sources}


@pytest.fixture
def fetch(monkeypatch, tmp_path):
    """Fetches a counted set from a hub at a commit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    form = Counted()
    dataset = NamedDataset("counted", "sc", {"standard": {Split.TRAIN: form}})

    def fetch(commit):
        monkeypatch.setattr("toolkit.finetuning.named.datasets.Hub", lambda: FakeHub(commit))
        return dataset.fetch("standard")[Split.TRAIN]

    return fetch


def test_files_are_written_once_for_each_commit(fetch):
    first = fetch("a")
    assert first.is_relative_to(cache_folder())
    assert (fetch("a"), fetch("a").read_text()) == (first, "1")
    time.sleep(0.01)
    other = fetch("b")
    assert other != first
    assert other.read_text() == "2"


def test_without_the_hub_the_newest_copy_of_this_form_is_used(fetch, capsys, monkeypatch):
    with pytest.raises(UserError, match="out of reach"):
        fetch(None)
    fetch("a")
    newest = fetch("b")
    os.utime(newest.parent / "origin.json", (time.time() + 5,) * 2)
    assert fetch(None) == newest
    monkeypatch.setattr("toolkit.finetuning.named.datasets._FORM_VERSION", 0)
    with pytest.raises(UserError, match="out of reach"):
        fetch(None)
    assert "using the copy that was read before" in capsys.readouterr().out


def test_a_broken_read_leaves_nothing(fetch, monkeypatch):
    def break_down(self, hub, folder):
        (folder / "train.txt").write_text("half")
        raise UserError("the connection broke down")

    monkeypatch.setattr(Counted, "write", break_down)
    with pytest.raises(UserError, match="broke down"):
        fetch("a")
    assert [path.name for path in (cache_folder() / "datasets").rglob("*") if path.is_file()] in ([], [".counted.lock"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HubRows("org/script", "train"), "this revision"),
        (HubRows("org/script", "train", files=("data/train.json",)), "no files data/train.json"),
        (HubRows("org/copied", "train"), "no files default/train/*.parquet"),
        (HubRows("org/missing", "train"), "no repository of this name"),
    ],
)
def test_what_the_hub_does_not_have_is_one_message(monkeypatch, tmp_path, source, message):
    for name in ("script/script.py", "copied/copied.py", "copied@refs%2Fconvert%2Fparquet/other/train/0000.parquet"):
        path = tmp_path / "datasets" / "org" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit")
    with HubServer(tmp_path) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with pytest.raises(UserError) as caught:
            Hub().commits([source])
    assert message in str(caught.value)
    assert "--train and --test" in str(caught.value)


class HubOf:
    """A hub whose splits are lists of rows."""

    def __init__(self, features=None, **splits):
        self.splits, self.features = splits, features

    def open(self, source):
        rows = self.splits[source.split]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return OpenRows(source, Dataset.from_dict(columns, features=self.features).to_iterable_dataset())

    def read_json(self, source, path):
        return {"O": 0, "B-X": 1}


LABELLED = Features({"sentence": Value("string"), "label": ClassLabel(names=["no", "yes"])})
ROWS = {name: HubRows("org/name", name) for name in ("train", "test", "corpus", "queries")}
SPLITS = {name: ROWS[name] for name in ("train", "test")}
TEXTS = ClassifiedTexts("texts", SPLITS, text="sentence")
WORDS = TaggedWords("words", dict.fromkeys(Split, ROWS["train"]), tags="tags", labels_file="label.json")
CLOZE = ClozeQuestions("cloze", SPLITS)
FOLDER = BeirRepositories("folder", {name: ROWS[name] for name in ("corpus", "queries", "test")}, corpus="judged")


def beir(**changed):
    corpus = [{"_id": "d", "title": None, "text": "x"}]
    rows = {"corpus": corpus, "queries": [{"_id": "q", "text": "x"}]}
    judged = [{"query-id": "q", "corpus-id": "d", "score": 1} | changed]
    return HubOf(**rows, test=judged)


@pytest.mark.parametrize(
    ("form", "hub", "message"),
    [
        (TEXTS, HubOf(train=[{"text": "x", "label": 0}]), "org/name train: the classes of the column 'label' have no"),
        (TEXTS, HubOf(LABELLED, train=[{"sentence": "x", "label": -1}]), "expected a label from 0 to 1, got -1"),
        (WORDS, HubOf(train=[{"words": ["a"]}]), "no column 'tokens' or 'tags'; found: 'words'"),
        (WORDS, HubOf(train=[{"tokens": ["a"], "tags": [0, 1]}]), "row 1: expected a known tag for each word, got 1"),
        (WORDS, HubOf(train=[{"tokens": ["a"], "tags": [2]}]), "row 1: expected a known tag for each word, got 1"),
        (WORDS, HubOf(train=[{"tokens": ["a\tb"], "tags": [0]}]), "columns cannot hold the word 'a\\tb'"),
        (
            CLOZE,
            HubOf(
                train=[
                    {
                        "passage": "Bo",
                        "query": "",
                        "entity_spans": {"text": ["Bo"], "start": [1]},
                        "answers": ["Bo"],
                        "idx": {"passage": 3, "query": 1},
                    }
                ]
            ),
            "passage 3: the answers ['Bo'] are not among its marked entities",
        ),
        (FOLDER, beir(**{"query-id": "z"}), "1 judged queries are not on the hub (z)"),
        (FOLDER, beir(**{"corpus-id": "z"}), "1 judged documents are not on the hub (z)"),
    ],
)
def test_a_repository_that_has_changed_is_one_message(tmp_path, form, hub, message):
    with pytest.raises(UserError) as caught:
        form.write(hub, tmp_path)
    assert message in str(caught.value)
    assert "--train and --test" in str(caught.value)


def test_a_split_without_rows_is_refused():
    empty = OpenRows(HubRows("org/name", "train"), IterableDataset.from_generator(lambda: iter(())))
    with pytest.raises(UserError, match="org/name train has no rows"):
        list(empty.read("text"))


def test_a_word_with_an_odd_blank_is_kept(tmp_path):
    WORDS.write(HubOf(train=[{"tokens": ["a\u00a0b", "c"], "tags": [1, 0]}]), tmp_path)
    assert (tmp_path / "train.conll").read_text(encoding="utf-8") == "a\u00a0b\tB-X\nc\tO\n\n"


def test_the_papers_settings_are_defaults_under_its_protocol():
    conll = DATASETS["conll2003"]
    assert conll.settings(FinetuningSettings(protocol="paper")).epochs == 1
    assert conll.settings(FinetuningSettings(protocol="paper", epochs=3)).epochs == 3
    assert conll.settings(FinetuningSettings(protocol="paper", steps=7)).epochs is None
    assert conll.settings(FinetuningSettings()).epochs is None
    shared = conll.settings(FinetuningSettings(protocol="paper", steps=7), shared={"protocol", "steps"})
    assert shared == conll.settings(FinetuningSettings(protocol="paper"))
    assert DATASETS["ontonotes"].settings(FinetuningSettings(protocol="paper", steps=7), shared={"steps"}).steps == 7
    assert DATASETS["uner"].paper_settings == {"epochs": 1}
    chosen = DATASETS["mnli"].settings(get_task("sc").Settings(protocol="paper"))
    assert chosen.pair_labels == ("Premise", "Hypothesis")


def test_a_wrong_model_fails_before_anything_is_fetched(monkeypatch, tmp_path):
    monkeypatch.setattr(NamedDataset, "fetch", lambda *_: pytest.fail("the data set was fetched"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for model, message in (("empty", "is not a model"), ("run", "holds no checkpoint")):
        with pytest.raises(UserError, match=message):
            finetune("sc", tmp_path / model, dataset="sst2", output=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("sst", "sc", "unknown data set 'sst'. Did you mean 'sst2'? Choose one of: sst2, qqp, mnli, conll2003"),
        (
            "squad",
            "sc",
            "the data set squad is for the task qa, not for sc. Use `toolkit finetune qa`, or choose one of",
        ),
        ("squad", "own", "is for the task qa, not for own. Use `toolkit finetune qa`."),
    ],
)
def test_names_that_do_not_fit(name, task, message):
    with pytest.raises(SettingsError) as caught:
        named_dataset(name, task=task)
    assert message in str(caught.value)
