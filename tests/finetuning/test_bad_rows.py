"""Rows that cannot be used: one rule for the readers of all families, and rows without labels."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.hf_encoders import save_encoder
from tests.support.retrieval import write_beir
from tests.support.text import write_lines
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Split, get_task
from toolkit.finetuning.predict import predict

SQUAD = {"context": "w1 w2 w3", "question": "w1", "answers": {"text": ["w2"], "answer_start": [3]}}
TABLES = {
    "sc": ([{"text": "w1", "label": "a"}, {"text": "w2 w3", "label": "b"}, {"text": None, "label": "a"}],
        "row 3: 'text' must be a string, found null", "'text' must be a string"),
    "tc": ([{"tokens": ["w1", "w2"], "ner_tags": ["O", "B-X"]}, {"tokens": ["w1"], "ner_tags": ["O", "O"]}],
        "row 2: 1 token, but 2 tags", "not a tag for each token"),
    "qa": ([{"id": "q1", **SQUAD}, {"id": "q2", **SQUAD, "answers": {"text": ["w2"], "answer_start": [4]}}],
        "question 'q2': the answer with answer_start = 4 does not match the context",
        "an answer does not match the context"),
}  # fmt: skip


def quick(name, **more):
    return get_task(name).Settings(steps=2, batch_rows=2, **more)


@pytest.mark.parametrize("name", TABLES)
def test_a_bad_row_is_an_error_that_names_the_way_out_or_is_left_out_and_counted(tmp_path, capsys, name):
    rows, message, reason = TABLES[name]
    files = dict.fromkeys(("train", "test"), write_lines(tmp_path / "rows.jsonl", rows))
    model, output = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out"
    with pytest.raises(UserError, match=rf"rows\.jsonl, {message}.* Or leave such rows out: --bad-rows skip\.$"):
        finetune(name, model, **files, output=output, settings=quick(name))
    finetune(name, model, **files, output=output, settings=quick(name, bad_rows="skip"))
    place = message.partition(":")[0]
    [found] = json.loads((output / "result.json").read_text())["bad_rows"]
    assert found == {
        "file": str(files["test"]), "reason": f"left out: {reason}", "count": 2, "first": [place, place]
    }  # fmt: skip
    assert f"rows.jsonl: 2 rows left out: {reason} ({place}" in " ".join(capsys.readouterr().out.split())
    assert len((output / "predictions.jsonl").read_text().splitlines()) == len(rows) - 1
    # The folder's own rule, which a row does not meet for its label.
    assert predict(output, files["test"], output=tmp_path) == sum(row.get("text", "") is not None for row in rows)


def test_a_bad_document_is_left_out(tmp_path):
    documents = [{"_id": str(number), "text": f"w{number}"} for number in range(4)] + [{"_id": "4", "text": None}]
    queries = [{"_id": f"q{number}", "text": f"w{number}"} for number in range(2)]
    folder = write_beir(tmp_path / "set", documents, queries, {"test": [("q0", "0", 1), ("q1", "4", 1)]})
    family, files = get_task("ir"), dict.fromkeys((Split.TRAIN, Split.TEST), folder / "qrels" / "test.tsv")
    with pytest.raises(UserError, match=r"line 5: 'text' must be a string, found null.* --bad-rows skip"):
        family(family.Settings()).read(files)
    data = family(family.Settings(bad_rows="skip")).read(files)
    assert data.judgements[Split.TEST].grades == {"q0": {"0": 1}, "q1": {"4": 1}}
    assert data.searched[Split.TEST] == ["0", "1", "2", "3"]


def test_a_file_without_a_usable_row_is_refused(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", [{"text": None, "label": 1}])
    family = get_task("sc")
    with pytest.raises(UserError, match=r"rows\.jsonl: none of its rows can be used"):
        family(family.Settings(bad_rows="skip")).read({Split.TRAIN: file, Split.TEST: file})


UNLABELLED = {
    "sc": ([{"text": f"w{n}", "label": n % 2} for n in range(6)], {"label": -1}, "label"),
    "tc": ([{"tokens": [f"w{n}", "w9"], "ner_tags": ["O", "B-X"]} for n in range(6)], {"ner_tags": None}, "ner_tags"),
    "qa": ([{"id": n, **SQUAD} for n in range(6)], {"answers": None}, "answers"),
}


@pytest.mark.parametrize("protocol", ["standard", "paper"])
@pytest.mark.parametrize("name", UNLABELLED)
def test_rows_without_labels_are_predicted_and_a_folder_predicts_as_its_training_did(tmp_path, name, protocol):
    rows, missing, key = UNLABELLED[name]
    train, some = (
        write_lines(tmp_path / "train.jsonl", rows),
        write_lines(tmp_path / "some.jsonl", [rows[0], {**rows[1], **missing}]),
    )
    bare = write_lines(
        tmp_path / "bare.jsonl", [{column: value for column, value in row.items() if column != key} for row in rows]
    )
    model, output, more = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out", tmp_path / "more"
    settings = quick(name, protocol=protocol)
    result = finetune(name, model, train=train, test=some, output=output, settings=settings)
    assert result.metric in result.test
    assert [found["count"] for found in result.bad_rows] == [1]
    predictions = (output / "predictions.jsonl").read_text()
    assert predict(output, some, output=more) == 2
    assert (more / "predictions.jsonl").read_text() == predictions
    result = finetune(name, model, train=train, test=bare, output=output, settings=settings)
    assert (result.test, result.majority) == ({}, None)
    with pytest.raises(UserError, match=r"could not create the output folder .*bare\.jsonl: File exists"):
        predict(output, bare, output=bare)
    assert predict(output / "model", bare, output=more) == len(rows)
    assert (more / "predictions.jsonl").read_text() == (output / "predictions.jsonl").read_text()


@pytest.mark.parametrize("label_type", ["number", "set"])
def test_other_labels_of_texts_are_predicted_too(tmp_path, label_type):
    labels = [0.5, 2, 3.5] if label_type == "number" else ["a", "a,b", ""]
    file = write_lines(
        tmp_path / "rows.jsonl", [{"a": f"w{n}", "b": "w5", "label": one} for n, one in enumerate(labels)]
    )
    settings = quick("sc", label_type=label_type, text_columns=("a", "b"))
    output = tmp_path / "out"
    finetune("sc", save_encoder("bert", tmp_path / "model"), train=file, test=file, output=output, settings=settings)
    odd = write_lines(tmp_path / "odd.jsonl", [{"a": "w1", "b": "w2", "label": {"what": "not one"}}])
    assert predict(output, odd, output=tmp_path) == 1
    predict(output, file, output=tmp_path)
    found, expected = (
        [json.loads(line)["prediction"] for line in (folder / "predictions.jsonl").read_text().splitlines()]
        for folder in (tmp_path, output)
    )
    # The folder's last layer has mean and deviation of the numbers in its weights.
    assert found == (pytest.approx(expected, rel=1e-4) if label_type == "number" else expected)


@pytest.mark.parametrize(
    ("label_type", "trained", "test", "expected"),
    [
        ("number", [0.5, 2], [-1, -1.0, "-1"], [None] * 3),
        ("number", [0.5, 2], ["", None, "3.5", 2], [None, None, 3.5, 2]),
        ("number", [0.5, 2], [-1, 3.5], [-1, 3.5]),
        ("number", [-1, 2], [-1, 2], [-1, 2]),
        ("number", [-1, 2], [-1, -1], None),
        ("set", ["a", "b"], ["-1", -1, "a", ""], [None, None, ("a",), ()]),
        ("set", ["a", "-1"], ["-1"], [("-1",)]),
    ],
)
def test_what_stands_for_no_label_in_a_test_file(tmp_path, label_type, trained, test, expected):
    files = {
        split: write_lines(tmp_path / f"{split}.jsonl", [{"text": "w1", "label": label} for label in labels])
        for split, labels in ((Split.TRAIN, trained), (Split.TEST, test))
    }
    family = get_task("sc")
    task = family(family.Settings(label_type=label_type))
    if expected is None:
        with pytest.raises(UserError, match="every row has the number -1"):
            task.read(files)
        return
    assert [row.label for row in task.read(files).examples[Split.TEST]] == expected


def test_a_folder_for_retrieval_ranks_for_judged_queries_or_for_all(tmp_path):
    documents = [{"_id": str(number), "text": f"w{number} w{number + 1}"} for number in range(9)]
    queries = [{"_id": f"q{number}", "text": f"w{number}"} for number in range(5)]
    qrels = [(f"q{number}", str(number), 1) for number in range(4)]
    folder = write_beir(tmp_path / "set", documents, queries, {"train": qrels, "test": qrels[:3]})
    output, more, model = tmp_path / "out", tmp_path / "more", save_encoder("eurobert", tmp_path / "model")
    finetune("ir", model, train=folder, test=folder, output=output, settings=quick("ir", query_prompt="w7 "))
    assert predict(output, folder, output=more) == 3
    assert (more / "predictions.jsonl").read_text() == (output / "predictions.jsonl").read_text()
    (folder / "qrels" / "test.tsv").unlink()
    assert predict(output, folder, output=more) == 5


POS = "w1 DT\nw2 NN\n\nw3 NN\n# #\n"


def test_word_classes_have_accuracy(tmp_path):
    train, test = tmp_path / "train.conll", tmp_path / "test.conll"
    train.write_text(POS * 4 + "# #\n")
    test.write_text(POS.replace("# #\n", ""))
    model, output = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out"
    result = finetune("tc", model, train=train, test=test, output=output, settings=quick("tc", label_type="class"))
    rows = [json.loads(line)["prediction"] for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [len(row) for row in rows] == [2, 1]
    right = sum(found == tag for found, tag in zip([*rows[0], *rows[1]], ["DT", "NN", "NN"], strict=True))
    assert result.test["accuracy"] == pytest.approx(right / 3)
    assert (result.metric, set(result.test), result.majority) == (
        "accuracy",
        {"accuracy", "f1_macro"},
        pytest.approx(2 / 3),
    )
    predict(output, test, output=tmp_path)
    assert (tmp_path / "predictions.jsonl").read_text() == (output / "predictions.jsonl").read_text()


def test_a_folder_tags_in_the_scheme_of_the_file_or_of_its_training(tmp_path):
    files = {"io": "w1 PER\n# O\n", "iob": "w1 B-PER\n# O\n", "bare": "w1\n#\n", "pos": "w1 NN\n# NN\n"}
    files |= {f"{len(tags)}.jsonl": json.dumps({"tokens": ["w1", "#"], "ner_tags": tags}) for tags in ([1], [1, 0])}
    files["mixed"] = "w1 E-PER\n# L-PER\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    family = get_task("tc")
    task = family(family.Settings())
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}))
    read = {name: task.read_open(tmp_path / name, tmp_path, {"scheme": "IOB1"}) for name in files}
    schemes = {name: data.schemes[Split.TEST].value for name, data in read.items()}
    assert schemes == dict.fromkeys(files, "IOB1") | {"io": "IO", "iob": "IOB2"}
    assert {(row.tokens, row.tags) for data in read.values() for row in data.sentences[Split.TEST]} == {
        (("w1", "#"), None)
    }


def test_numbers_of_tags_have_the_names_that_datasets_keeps_in_parquet(tmp_path):
    feature = {"feature": {"names": ["O", "PER"], "_type": "ClassLabel"}, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pa.table({"tokens": [["w1", "w2"], ["w3"]], "ner_tags": [[0, 1], [1]]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "named.parquet")
    write_lines(tmp_path / "unnamed.jsonl", table.to_pylist())
    family = get_task("tc")
    files = dict.fromkeys((Split.TRAIN, Split.TEST), tmp_path / "named.parquet")
    data = family(family.Settings()).read(files)
    assert [row.tags for row in data.sentences[Split.TEST]] == [("O", "PER"), ("PER",)]
    assert data.tags == ("O", "B-PER", "I-PER")
    with pytest.raises(UserError, match=r"unnamed\.jsonl: 'ner_tags' has numbers, such as 0, and no names for them"):
        family(family.Settings()).read(files | {Split.TEST: tmp_path / "unnamed.jsonl"})
