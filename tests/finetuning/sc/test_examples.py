from pathlib import Path

import pytest

from tests.support.text import write_lines
from toolkit.core.errors import UserError
from toolkit.finetuning import Split
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.sc.examples import Example, LabelSet, read_class, to_examples
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings
from toolkit.tables import TableFile


def table_of(*rows):
    return TableFile(Path("rows.jsonl"), tuple(rows[0]), list(rows))


def examples_of(*rows, columns=("text",)):
    return to_examples(
        table_of(*rows), bad=BadRows(), text_columns=columns, label_column="label", read_label=read_class
    )


def test_labels_keep_their_type_and_equal_ones_of_two_types_differ():
    labels = LabelSet([1, "b", 0, True, "1", 1.0, 1])
    assert [(type(label), label) for label in labels.labels] == [
        (bool, True),
        (float, 1.0),
        (int, 0),
        (int, 1),
        (str, "1"),
        (str, "b"),
    ]
    assert [labels.index(label) for label in (True, 1.0, 0, 1, "1", "b")] == [0, 1, 2, 3, 4, 5]
    assert False not in labels
    assert "c" not in labels


def test_order_of_rows_does_not_change_class_numbers():
    assert LabelSet(["no", "yes"]).labels == LabelSet(["yes", "no", "yes"]).labels == ("no", "yes")


@pytest.mark.parametrize("columns", [("text", "text_pair"), ("text",)])
def test_a_pair_is_recognised_by_its_column(tmp_path, columns):
    path = write_lines(tmp_path / "rows.jsonl", [{**dict.fromkeys(columns, "a"), "label": label} for label in (0, 1)])
    task = SequenceClassification(SequenceClassificationSettings())
    assert task.read({Split.TRAIN: path, Split.TEST: path}).columns == columns


def test_named_columns_are_read_in_the_order_given():
    row = {"premise": "p", "hypothesis": "h", "label": 2}
    assert examples_of(row, columns=("premise", "hypothesis")) == [Example("p", "h", 2, 1)]
    assert examples_of(row, columns=("hypothesis",)) == [Example("h", None, 2, 1)]


def test_a_missing_column_is_named_with_those_found():
    with pytest.raises(UserError, match=r"rows\.jsonl: no column 'text'; found: 'sentence', 'label'"):
        examples_of({"sentence": "a", "label": 0})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 7, "label": 0}, r"row 2: 'text' must be a string, found 7"),
        ({"text": "a", "label": None}, r"row 2: 'label' must be .* found null"),
        ({"text": "a", "label": ""}, r"row 2: 'label' must be .* found ''"),
        ({"text": "a", "label": float("nan")}, r"row 2: 'label' is nan"),
    ],
)
def test_a_bad_row_is_named(row, message):
    with pytest.raises(UserError, match=message):
        examples_of({"text": "fine", "label": 0}, row)


def test_a_label_of_a_format_without_types_stands_for_the_one_written_alike():
    numbers = LabelSet([0, 1])
    assert "1" in numbers
    assert (numbers.index("1"), numbers.index(1)) == (1, 1)
    assert "2" not in numbers
    texts = LabelSet(["0", "1"])
    assert texts.index(1) == 1


def test_a_label_that_could_stand_for_two_is_unknown():
    assert "1" in LabelSet([1, "1"])
    assert True not in LabelSet([1, "1"])
