"""Numbers and sets as labels of texts: from the cell to the scores, and through the stock classes."""

import itertools
import json
import math
import random

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from tests.support.hf_encoders import WORDS, save_encoder
from tests.support.text import read_lines, write_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split, get_task, load_classifier
from toolkit.finetuning.sc.examples import Example, read_number, read_set
from toolkit.finetuning.sc.labels import NumberLabels, SetLabels
from toolkit.finetuning.sc.task import SequenceClassificationSettings

TRAINED = {"learning_rate": 1e-2, "steps": 60, "batch_rows": 16, "seed": 3}


def of(kind, *labels):
    return kind(("train.tsv", [Example("w1", None, label, row) for row, label in enumerate(labels, start=1)]))


def texts(number):
    draw = random.Random(0)
    return [draw.choices(WORDS, k=draw.randint(3, 12)) for _ in range(number)]


def classified(folder, rows):
    """Labels of a saved model."""
    return load_classifier(folder / "model")([row["text"] for row in rows])


@pytest.mark.parametrize("family", ["eurobert", "bert"])
def test_numbers_are_predicted_in_their_unit_and_the_saved_model_says_the_same(tmp_path, family):
    # Degrees: the share of the first half of the vocabulary, between 950 and 1050.
    rows = [
        {"text": " ".join(words), "label": 950 + 100 * sum(WORDS.index(word) < 20 for word in words) / len(words)}
        for words in texts(120)
    ]
    train, test = write_lines(tmp_path / "train.jsonl", rows[:96]), write_lines(tmp_path / "test.jsonl", rows[96:])
    settings = SequenceClassificationSettings(**TRAINED, label_type="number")
    model, output = save_encoder(family, tmp_path / family), tmp_path / "out"
    result = finetune("sc", model, train=train, test=test, output=output, settings=settings)

    assert (result.metric, result.majority) == ("pearson", None)
    assert result.test["pearson"] > 0.8
    found = read_lines(output / "predictions.jsonl")
    truth, prediction = ([row[name] for row in found] for name in ("label", "prediction"))
    assert truth == [row["label"] for row in rows[96:]]
    assert result.test["pearson"] == stats.pearsonr(truth, prediction).statistic
    assert result.test["spearman"] == stats.spearmanr(truth, prediction).statistic
    assert 940 < min(prediction) < max(prediction) < 1060

    assert classified(output, rows[96:]) == pytest.approx(prediction, rel=1e-6)
    config = json.loads((output / "model" / "config.json").read_text())
    of_head = ("regression", {"0": "number"}) if family == "eurobert" else (None, None)
    assert (config.get("problem_type"), config.get("id2label")) == of_head
    assert not (output / "model" / "labels.json").exists()


@pytest.mark.parametrize("family", ["eurobert", "bert"])
def test_sets_are_learnt_and_the_saved_model_says_the_same(tmp_path, family):
    # A text has a label for each of three words that occurs in it, so that many have none.
    rows = [{"text": " ".join(words), "label": sorted({"w1", "w2", "w3"} & set(words))} for words in texts(160)]
    for number, row in enumerate(rows):
        row["text"] = f"w{1 + number % 3} " + row["text"] if number % 2 else row["text"]
        row["label"] = sorted({"w1", "w2", "w3"} & set(row["text"].split()))
    train, test = write_lines(tmp_path / "train.jsonl", rows[:128]), write_lines(tmp_path / "test.jsonl", rows[128:])
    settings = SequenceClassificationSettings(**{**TRAINED, "steps": 150}, label_type="set")
    model, output = save_encoder(family, tmp_path / family), tmp_path / "out"
    result = finetune("sc", model, train=train, test=test, output=output, settings=settings)

    assert result.metric == "f1_micro"
    assert result.test["f1_micro"] > max(0.8, result.majority)
    found = read_lines(output / "predictions.jsonl")
    assert [row["label"] for row in found] == [row["label"] for row in rows[128:]]
    assert [] in [row["label"] for row in found]
    names = json.loads((output / "model" / "labels.json").read_text())
    assert names == ["w1", "w2", "w3"]
    truth, prediction = ([[label in row[key] for label in names] for row in found] for key in ("label", "prediction"))
    assert result.test == {
        "f1_micro": metrics.f1_score(truth, prediction, average="micro"),
        "f1_macro": metrics.f1_score(truth, prediction, average="macro"),
        "exact_match": metrics.accuracy_score(truth, prediction),
    }

    assert classified(output, rows[128:]) == [row["prediction"] for row in found]
    config = json.loads((output / "model" / "config.json").read_text())
    of_head = (
        ("multi_label_classification", {"0": "w1", "1": "w2", "2": "w3"}) if family == "eurobert" else (None, None)
    )
    assert (config.get("problem_type"), config.get("id2label")) == of_head


def test_scores_of_sets_of_a_case_done_by_hand():
    # Hits 2, found 3, expected 4. By label: 1 of 1 and 2; 0 of 1 and 1; 1 of 1 and 1. One row is whole.
    labels = of(SetLabels, ("a", "b", "c"))
    scores = labels.scores([("a", "c"), ("b",), ("a",)], [("a", "c"), (), ("b",)])
    assert scores["f1_micro"] == pytest.approx(2 * 2 / (3 + 4))
    assert scores["f1_macro"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert scores["exact_match"] == pytest.approx(1 / 3)
    assert labels.scores([()], [()]) == {"f1_micro": 0.0, "f1_macro": 0.0, "exact_match": 1.0}


def test_scores_of_numbers_of_a_case_done_by_hand():
    # Deviations (-1, 0, 1) and (-2, -1, 3): covariance 5, squares 2 and 14; the order is the same.
    scores = of(NumberLabels, 1, 2).scores([1, 2, 3], [0, 1, 5])
    assert scores["pearson"] == pytest.approx(5 / math.sqrt(2 * 14))
    assert scores["spearman"] == pytest.approx(1.0)


def test_equal_predictions_do_not_correlate():
    assert of(NumberLabels, 1, 2).scores([1, 2, 3], [5, 5, 5]) == {"pearson": 0.0, "spearman": 0.0}


def test_targets_are_standardised_and_answers_are_not():
    labels = of(NumberLabels, 10.0, 30.0)
    assert [labels.target(number) for number in (10, 20, 30)] == [-1.0, 0.0, 1.0]
    assert labels.answer(np.array([0.5], np.float32)) == 25.0


def test_a_set_is_a_row_of_ones_and_zeros():
    labels = of(SetLabels, ("b", "a"), (), ("c",))
    assert [labels.target(label) for label in (("a", "c"), ())] == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert labels.answer(np.array([0.1, -0.1, 3.0], np.float32)) == ["a", "c"]


def test_the_constant_set_that_scores_best_on_the_training_split_is_the_baseline():
    # "a" alone: 2 x 3 of 4 + 5. Both: 2 x 5 of 8 + 5.
    training = [("a", "b"), ("a", "b"), ("a",), ()]
    assert of(SetLabels, *training).best_constant(training, metric="f1_micro") == ["a", "b"]


@pytest.mark.parametrize("metric", SetLabels.metrics)
def test_no_constant_set_beats_the_baseline(metric):
    training = [("c",), ("c",), ("c",), ("a", "b"), ("a", "b", "c", "d"), ("a", "d"), (), ()]
    labels = of(SetLabels, *training)
    subsets = itertools.chain.from_iterable(itertools.combinations("abcd", size) for size in range(5))
    chosen, *others = (
        labels.scores(training, [constant] * len(training))[metric]
        for constant in (labels.best_constant(training, metric=metric), *subsets)
    )
    assert chosen == pytest.approx(max(others))


@pytest.mark.parametrize(("metric", "majority"), [(None, 0.75), ("f1_macro", 3 / 7), ("mcc", 0.0)])
def test_the_baseline_is_of_the_main_metric(tmp_path, metric, majority):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": "w1", "label": label}) + "\n" for label in "aaab"))
    task = get_task("sc")(get_task("sc").Settings(metric=metric))
    data = task.read(dict.fromkeys((Split.TRAIN, Split.TEST), rows))
    assert task.baseline(data) == pytest.approx(majority)


@pytest.mark.parametrize(("cell", "number"), [(3, 3.0), ("-2.5e1", -25.0), (0.5, 0.5), (" 7 ", 7.0)])
def test_numbers_are_read_from_strings_as_well(cell, number):
    assert read_number(cell, "here") == number


@pytest.mark.parametrize("cell", [None, "", "seven", "nan", True, [1], float("inf"), 10**400])
def test_what_is_no_number_is_refused(cell):
    with pytest.raises(UserError, match=r"rows\.tsv, row 2: 'label' must be a finite number, found "):
        read_number(cell, "rows.tsv, row 2: 'label'")


@pytest.mark.parametrize(
    ("cell", "separator", "labels"),
    [(["a", "b,c"], ",", ("a", "b,c")), ("a, b,a,", ",", ("a", "b")), ("a b|c", "|", ("a b", "c")), ("", ",", ()),
     ([], ",", ()), ([3, 1], ",", (3, 1))],
)  # fmt: skip
def test_sets_are_lists_or_strings_with_a_separator(cell, separator, labels):
    assert read_set(cell, "here", separator=separator) == labels


@pytest.mark.parametrize("cell", [None, 3, [0.5], [""], [["a"]], {"a": 1}])
def test_what_is_no_set_is_refused(cell):
    with pytest.raises(UserError, match=r"rows\.tsv, row 2: 'label' must be a list of strings or integers"):
        read_set(cell, "rows.tsv, row 2: 'label'", separator=",")


@pytest.mark.parametrize(
    ("label_type", "train", "test", "message"),
    [
        ("set", "a,b", "a,x", r"test\.tsv, row 1: the label 'x' does not occur in the training file .*'a', 'b'"),
        ("class", "a\nw1\tb", "x", r"test\.tsv, row 1: the label 'x' does not occur in the training file .*'a', 'b'"),
        ("number", "1\nw1\t2", "2", r"test\.tsv: every row has the number 2, but correlations need"),
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path, label_type, train, test, message):
    files = {"train": tmp_path / "train.tsv", "test": tmp_path / "test.tsv"}
    for name, label in (("train", train), ("test", test)):
        files[name].write_text(f"text\tlabel\nw1\t{label}\n")
    settings = SequenceClassificationSettings(label_type=label_type)
    with pytest.raises(UserError, match=message):
        finetune("sc", save_encoder("bert", tmp_path / "model"), **files, output=tmp_path / "out", settings=settings)
