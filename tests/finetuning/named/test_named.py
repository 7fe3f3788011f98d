"""Named data sets: all from a hub on the loopback to local files, and on through the command line."""

import json
import os

import pytest

from tests.support.apart import run_apart
from tests.support.hf_encoders import save_encoder
from tests.support.hub_server import HubServer
from tests.support.named_repositories import CONLL_LABELS, NUM_TRAIN, write_repositories
from toolkit.cli.finetune import help_sections
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import FinetuningSettings, Split, get_task
from toolkit.finetuning.named.datasets import DATASETS, NamedDataset, named_dataset
from toolkit.finetuning.named.hub_rows import Hub, HubRows
from toolkit.finetuning.named.published_forms import ClassifiedTexts, ClozeQuestions, TaggedWords, table_of
from toolkit.finetuning.protocol import split_training

# What the client reads of its environment, it reads when it is imported: hence a process apart, and one for all.
PROGRAM = """
import contextlib, gc, io, json, pathlib, sys

from toolkit.cli import main
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.named.datasets import DATASETS
from toolkit.finetuning.named.published_forms import TableForm, table_of

def content(part):
    if isinstance(part.form, TableForm):
        return table_of(part).rows
    judged = part.form.judgements(part.files, BadRows())[part.split]
    documents, queries = judged.collection.documents, judged.collection.queries
    return {"documents": [*documents], "queries": [*queries], "grades": judged.grades, "form": part.form.name}

# A part of NanoBEIR is the same under either protocol.
parts = {
    protocol: {name: dataset.fetch(protocol) for name, dataset in DATASETS.items()
               if protocol == "standard" or not name.startswith("nanobeir-")}
    for protocol in ("standard", "paper")
}
fetched = {
    protocol: {name: {split: content(part) for split, part in splits.items()} for name, splits in sets.items()}
    for protocol, sets in parts.items()
}
now = parts["standard"] | parts["paper"]
cached = {name: dataset.cached("paper") == now[name] for name, dataset in DATASETS.items()}
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
pathlib.Path("done.json").write_text(json.dumps({"fetched": fetched, "cached": cached, "calls": calls}))
"""
RUNS = {"sc": "mnli", "tc": "conll2003", "qa": "squad-v2", "ir": "nq"}
"""Under the paper's protocol."""
STANDARD_RUNS = {"conll2003": "tc", "ontonotes": "tc", "uner": "tc"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `done.json`: what is read of each set, and how each run of `RUNS` ended."""
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
        done = run_apart("-c", PROGRAM, json.dumps(runs), folder=folder, environment=environment)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def done(place):
    return json.loads((place / "done.json").read_text())


@pytest.fixture(scope="module")
def read(done):
    """What a family reads of a split of a set: rows, or documents, queries and grades."""
    return lambda name, split, protocol="standard": done["fetched"][protocol][name][split]


def test_the_help_of_a_task_lists_its_sets():
    listed = [help_sections([task, "--help"])[-1] for task in RUNS]
    assert [title for title, _ in listed] == [f"Data sets of {task} (--dataset NAME)" for task in RUNS]
    names = [name for _, [(row, _)] in listed for name in row.split(", ")]
    assert sorted(names) == sorted(DATASETS)


def test_every_set_has_train_and_test(done):
    assert list(done["fetched"]["standard"]) == list(DATASETS)
    papers = [name for name in DATASETS if not name.startswith("nanobeir")]
    assert len(papers) == 12
    for protocol, sets in done["fetched"].items():
        for name, splits in ((name, sets[name]) for name in papers):
            has_validation = name != "nq" or protocol == "paper"
            assert list(splits) == ["train", *["validation"] * has_validation, "test"]


def test_what_was_fetched_is_known_without_the_hub(done):
    assert done["cached"] == dict.fromkeys(DATASETS, True)


def test_glue_is_cut_as_the_papers_authors_cut_it(read):
    published = [{"text": f"w{n % 7} train ", "label": ("negative", "positive")[n % 2]} for n in range(NUM_TRAIN)]
    for protocol in ("standard", "paper"):
        for split, numbers in zip(("train", "validation"), split_training(NUM_TRAIN), strict=True):
            assert read("sst2", split, protocol) == [published[row] for row in numbers]
    assert read("sst2", "test")[1] == {"text": "w1 validation ", "label": "positive"}


def test_pairs_of_glue(read):
    assert read("qqp", "test")[3] == {"text": "w3 a", "text_pair": "w3 b", "label": "duplicate"}
    matched = {"text": "w2 validation_matched", "text_pair": "w2", "label": "contradiction"}
    assert read("mnli", "test")[2] == matched
    assert (len(read("mnli", "train")), len(read("mnli", "test"))) == (38, 6)


def test_numbers_of_tags_are_tags(read):
    rows = read("conll2003", "validation")
    assert rows[0] == {"tokens": ["w0", "in", "w5"], "tags": ["O", "O", CONLL_LABELS[-1]]}
    assert rows[1]["tags"] == ["B-ORG", "O", "I-LOC"]
    assert len(read("conll2003", "train")) == 12
    # Two files of training sentences.
    assert len(read("ontonotes", "train")) == 24
    assert read("uner", "test")[1]["tags"] == ["B-PER", "O", "I-LOC"]


def test_squad_has_its_columns(read):
    assert read("squad", "test")[0] == {
        "id": "validation0",
        "context": "w0 is in w1 or w3.",
        "question": "what is w0?",
        "answers": {"text": ["w0", "w3"], "answer_start": [0, 15]},
    }
    parts = dict(zip(("train", "validation"), split_training(NUM_TRAIN), strict=True))
    for split, numbers in parts.items():
        assert [row["id"] for row in read("squad", split)] == [f"train{number}" for number in numbers]
    assert [len(row["answers"]["text"]) for row in read("squad-v2", "test")] == [2, 0, 2, 0, 2, 0]


def test_record_is_span_extraction(read):
    test = read("record", "test")
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


def test_msmarco_is_whole_or_judged(read):
    assert len(read("msmarco", "test")["documents"]) == 60
    judged = read("msmarco", "test", "paper")
    # 30 of train, 4 of dev, and 6 of the test split, whose queries share documents.
    assert judged["documents"] == [str(n) for n in (*range(34), *range(40, 46))]
    assert len(judged["queries"]) == 37
    assert judged["grades"]["1040"] == {"40": 0, "41": 1, "42": 2, "43": 3}
    train = read("msmarco", "train")["grades"]
    assert (train["1000"], train["1001"], len(train)) == ({"0": 1}, {"1": 1}, 30)
    assert len(read("msmarco", "validation")["grades"]) == 4


def test_natural_questions_train_on_msmarco(read):
    for protocol in ("standard", "paper"):
        assert read("nq", "train", protocol) == read("msmarco", "train", "paper")
    whole = read("nq", "test")
    assert (len(whole["documents"]), len(whole["grades"])) == (20, 10)
    halves = [{*read("nq", split, "paper")["grades"]} for split in ("validation", "test")]
    assert [len(half) for half in halves] == [5, 5]
    assert halves[0] | halves[1] == {f"test{n}" for n in range(10)}
    assert len(read("nq", "test", "paper")["documents"]) == 11


def test_mldr_trains_on_its_own_split_or_on_msmarco(read):
    own = read("mldr", "train")
    assert own["grades"] == {f"q-en-{n}": {f"doc-en-{n}": 1} for n in range(8)}
    assert (len(own["documents"]), len(read("mldr", "test")["documents"])) == (8, 20)
    assert read("mldr", "train", "paper") == read("msmarco", "train", "paper")
    assert read("mldr", "test", "paper")["documents"] == [f"doc-en-{n}" for n in range(8, 14)]
    assert [len(read("mldr", split)["grades"]) for split in ("validation", "test")] == [2, 4]


def test_nanobeir_is_thirteen_sets_that_are_searched_apart(read):
    whole, one = read("nanobeir", "test"), read("nanobeir-arguana", "test")
    assert (len(whole["documents"]), len(whole["queries"]), len(whole["grades"])) == (13 * 20, 13 * 4, 13 * 4)
    assert one["grades"]["NanoArguAna/q1"] == {"NanoArguAna/d1": 1, "NanoArguAna/d2": 1}
    assert whole["grades"].items() >= one["grades"].items()


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
    assert [len(row) for row in rows] == [len(row["tokens"]) for row in read(name, "test")]
    tags = {tag for split in ("train", "test") for row in read(name, split) for tag in row["tags"]}
    kinds = {tag[2:] for tag in tags - {"O"}}
    assert {tag for row in rows for tag in row} <= {"O", *(f"{letter}-{kind}" for kind in kinds for letter in "BI")}


class CountedHub:
    """A hub with a file at a commit, or out of reach."""

    def __init__(self, folder, commit):
        self.folder, self.commit = folder, commit

    def fetch(self, source):
        if self.commit is None:
            raise UserError("the hub is out of reach")
        file = self.folder / f"{self.commit}.jsonl"
        file.write_text(json.dumps({"sentence": self.commit, "label": 1}) + "\n")
        return [file]


def test_without_the_hub_what_was_fetched_last_is_used(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    form = ClassifiedTexts("texts", {split: HubRows("org/name", split) for split in Split}, "sentence", ("no", "yes"))
    dataset = NamedDataset("texts", "sc", {"standard": {Split.TEST: form}})

    def fetch(commit):
        monkeypatch.setattr("toolkit.finetuning.named.datasets.Hub", lambda: CountedHub(tmp_path, commit))
        return table_of(dataset.fetch("standard")[Split.TEST]).rows

    with pytest.raises(UserError, match="out of reach"):
        fetch(None)
    assert dataset.cached("standard") == {}
    for commit in ("a", "b", None):
        assert fetch(commit) == [{"text": commit or "b", "label": "yes"}]
    assert "using the copy of texts that was fetched before" in capsys.readouterr().out
    (tmp_path / "b.jsonl").unlink()
    assert dataset.cached("standard") == {}
    with pytest.raises(UserError, match="out of reach"):
        fetch(None)


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
            Hub().fetch(source)
    assert message in str(caught.value)
    assert "--train and --test" in str(caught.value)


SPLITS = {name: HubRows("org/name", name) for name in ("train", "test")}
TEXTS = ClassifiedTexts("texts", SPLITS, text="sentence", labels=("no", "yes"))
WORDS = TaggedWords("words", SPLITS, tags="tags", labels=("O", "B-X"))
CLOZE = ClozeQuestions("cloze", SPLITS)
MENTION = {"passage": "Bo", "query": "", "entity_spans": {"text": ["Bo"], "start": [1]}, "answers": ["Bo"]}


@pytest.mark.parametrize(
    ("form", "row", "message"),
    [
        (TEXTS, {"sentence": "x", "label": -1}, "expected a label from 0 to 1, got -1"),
        (WORDS, {"words": ["a"]}, "org/name test: no column 'tokens' or 'tags'; found: 'words'"),
        (WORDS, {"tokens": ["a"], "tags": [0, 1]}, "row 1: expected a known tag for each word, got 1"),
        (WORDS, {"tokens": ["a"], "tags": [2]}, "row 1: expected a known tag for each word, got 1"),
        (CLOZE, {**MENTION, "idx": {"passage": 3, "query": 1}}, "passage 3: the answers ['Bo'] are not among its"),
        (TEXTS, None, "org/name test has no rows"),
    ],
)
def test_a_repository_that_has_changed_is_one_message(tmp_path, form, row, message):
    file = tmp_path / "rows.jsonl"
    file.write_text("" if row is None else json.dumps(row) + "\n")
    with pytest.raises(UserError) as caught:
        form.table(Split.TEST, {"test": [file]})
    assert message in str(caught.value)
    assert "--train and --test" in str(caught.value)


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


def test_a_set_is_not_for_a_family_of_another_package():
    with pytest.raises(SettingsError, match=r"is for the task qa, not for own\. Use `toolkit finetune qa`\."):
        named_dataset("squad", task="own")
