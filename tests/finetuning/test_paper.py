import pytest
from transformers import PreTrainedTokenizerFast

from tests.support.hf_encoders import save_encoder
from tests.support.text import read_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split, load_classifier, open_source
from toolkit.finetuning.named.datasets import DATASETS
from toolkit.finetuning.protocol import split_training
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings
from toolkit.model_folder import read_json


def test_five_percent_are_cut_off_as_datasets_does_with_seed_42():
    train, validation = split_training(40)
    assert validation == [32, 7]
    assert sorted(train + validation) == list(range(40))
    # SST-2; and a file for which 5 % for validation, rounded up, would be 8 rows.
    assert [len(split_training(rows)[1]) for rows in (67349, 140)] == [3368, 7]


def test_the_smallest_file_is_shared_and_a_single_row_is_refused():
    assert [len(part) for part in split_training(2)] == [1, 1]
    with pytest.raises(UserError, match=r"takes 5 % of the training file .* a single row"):
        split_training(1)


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(tmp_path):
    """Texts are words; an end-of-text token written as a string is that token."""
    return open_source(str(save_encoder("eurobert", tmp_path / "model")))


def task(**settings):
    return SequenceClassification(SequenceClassificationSettings(protocol="paper", **settings))


def words(source, row):
    return source.tokenizer.decode(row["input_ids"])


def test_a_pair_is_one_string_of_labelled_lines_that_ends_in_eos(tmp_path, source):
    rows = [("first_part", "second", "label"), ("w1 w2", "w3", "a"), ("w4", "w5", "b")]
    path = write(tmp_path / "pairs.tsv", rows)
    given = {"text_columns": ("first_part", "second")}
    seen = []
    source.tokenizer.__class__ = type("Recorder", (type(source.tokenizer),), {"__call__": recording(seen)})
    for named in ({}, {"pair_labels": ("Question 1", "Question 2")}):
        paper = task(**given, **named)
        features = paper.encode(paper.read({Split.TRAIN: path, Split.TEST: path}), source)
    assert seen[1] == ["First part: w1 w2\nSecond: w3<eos>", "First part: w4\nSecond: w5<eos>"]
    assert seen[4] == ["Question 1: w1 w2\nQuestion 2: w3<eos>", "Question 1: w4\nQuestion 2: w5<eos>"]
    assert set(features) == {Split.TRAIN, Split.VALIDATION, Split.TEST}


@pytest.mark.parametrize("labels", [None, ("A label", "Of the settings")])
def test_a_pair_keeps_the_labels_of_the_training_whatever_its_columns_are_called(tmp_path, labels):
    rows = [("w1 w2", "w3", "a"), ("w4", "w5", "b"), ("w1 " * 99, "w3", "a"), ("w4", "w5", "b")]
    train = write(tmp_path / "train.tsv", [("the_first_part", "the_second", "label"), *rows])
    other = write(tmp_path / "other.tsv", [("one", "two", "label"), *rows])
    paper = task(text_columns=("the_first_part", "the_second"), pair_labels=labels, steps=1)
    model, folder = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out/model"
    finetune("sc", model, train=train, test=train, output=folder.parent, settings=paper.settings)
    source, notes = paper.framed(open_source(str(folder))), read_json(folder / "finetuning.json")
    trained_on = paper.encode(paper.read({Split.TRAIN: train, Split.TEST: train}), source)[Split.TEST]
    again = task(**paper.settings.model_dump(include={"pair_labels"}), text_columns=("one", "two"))
    assert again.encode(again.read_open(other, folder, notes), source)[Split.TEST] == trained_on
    classify, seen = load_classifier(folder), []
    network = classify.network
    classify.network = lambda **batch: (seen.extend(batch["input_ids"].tolist()), network(**batch))[1]
    for row in rows:
        classify(*row[:2])
    # The third one is cut off before its end-of-text token.
    assert seen == [row["input_ids"] for row in trained_on]


@pytest.mark.parametrize(
    ("name", "labels"), [("qqp", ("Question 1", "Question 2")), ("mnli", ("Premise", "Hypothesis")), ("sst2", None)]
)
def test_named_sets_bring_what_their_pairs_are_called(name, labels):
    settings = DATASETS[name].settings(SequenceClassificationSettings(protocol="paper", seed=5))
    assert (settings.pair_labels, settings.seed) == (labels, 5)
    assert DATASETS[name].settings(SequenceClassificationSettings()).pair_labels is None


def recording(seen):
    def call(self, texts, **options):
        assert options["add_special_tokens"] is False
        seen.append(texts)
        return PreTrainedTokenizerFast.__call__(self, texts, **options)

    return call


def test_a_template_of_the_tokenizer_is_left_out_and_the_text_ends_in_eos(tmp_path):
    source = open_source(str(save_encoder("bert", tmp_path / "bert")))
    source.tokenizer.eos_token = "<eos>"
    path = write(
        tmp_path / "texts.tsv", [("text", "label"), ("w1 w2 ", "a"), ("w3 ", "b"), (" ".join(["w4"] * 40), "a")]
    )
    paper = task()
    data = paper.read({Split.TRAIN: path, Split.VALIDATION: path, Split.TEST: path})
    features = paper.encode(data, source)[Split.TEST]
    assert words(source, features[0]) == "w1 w2 <eos>"
    # 99 % of 34 positions, rounded as theirs; truncation takes the end-of-text token away.
    assert len(features[2]["input_ids"]) == 34
    assert source.tokenizer.eos_token_id not in features[2]["input_ids"]


def test_without_a_validation_file_five_percent_of_the_training_file_become_one(tmp_path, source):
    rows = [("text", "label"), *((f"w{number % 40} ", "ab"[number % 2]) for number in range(40))]
    path = write(tmp_path / "texts.tsv", rows)
    paper = task()
    data = paper.read({Split.TRAIN: path, Split.TEST: path})
    assert [example.row for example in data.examples[Split.VALIDATION]] == [33, 8]
    assert len(data.examples[Split.TRAIN]) == 38
    assert len(data.examples[Split.TEST]) == 40
    given = paper.read({Split.TRAIN: path, Split.VALIDATION: path, Split.TEST: path})
    assert [len(rows) for rows in given.examples.values()] == [40, 40, 40]


def test_its_metric_is_accuracy_under_a_name_of_its_own(tmp_path):
    path = write(
        tmp_path / "texts.tsv", [("text", "label"), *((f"w{number % 40}", "ab"[number % 2]) for number in range(40))]
    )
    settings = SequenceClassificationSettings(protocol="paper", steps=2)
    model = save_encoder("eurobert", tmp_path / "model")
    result = finetune("sc", model, train=path, test=path, output=tmp_path / "out", settings=settings)
    predictions = read_lines(tmp_path / "out" / "predictions.jsonl")
    hits = sum(row["prediction"] == row["label"] for row in predictions)
    assert result.test == {"paper_accuracy": hits / 40}
    assert (result.metric, result.protocol, set(result.validation)) == ("paper_accuracy", "paper", {"paper_accuracy"})
