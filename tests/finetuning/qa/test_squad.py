import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.text import write_lines
from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRows
from toolkit.finetuning.qa.squad import Answer, Question, read_questions

CONTEXT = "Ada wrote the first program. It was 1843."
FOUND = {"id": "q1", "question": "Who wrote it?", "answers": [{"text": "Ada", "answer_start": 0}]}
NONE = {"id": "q2", "question": "Who read it?", "answers": [], "is_impossible": True}
QUESTIONS = [
    Question("q1", CONTEXT, "Who wrote it?", (Answer(0, "Ada"),)),
    Question("q2", CONTEXT, "Who read it?", ()),
]


def read(path):
    return read_questions(path, BadRows())


def write_squad(path, *entries, context=CONTEXT):
    paragraphs = [{"context": context, "qas": list(entries)}]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")
    return path


def write_record(path):
    """Entities end at their last character, as ReCoRD counts."""
    answers = [{"start": 0, "end": 2, "text": "Ada"}, {"start": 36, "end": 39, "text": "1843"}]
    passage = {"text": CONTEXT, "entities": [{"start": 0, "end": 2}]}
    record = {"passage": passage, "qas": [{"query": "@placeholder wrote", "answers": answers, "idx": 7}], "idx": 3}
    path.write_text(json.dumps(record) + "\n", "utf-8")
    return path


def test_squad_of_both_versions(tmp_path):
    assert read(write_squad(tmp_path / "dev.json", FOUND, NONE)) == QUESTIONS
    first = {**FOUND, "is_impossible": False}
    assert read(write_squad(tmp_path / "dev.json", first, {**NONE, "plausible_answers": []})) == QUESTIONS


def test_a_byte_order_mark_is_no_part_of_the_json(tmp_path):
    path = write_squad(tmp_path / "dev.json", FOUND)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == QUESTIONS[:1]


def test_record_answers_are_all_mentions(tmp_path):
    expected = [Question(7, CONTEXT, "@placeholder wrote", (Answer(0, "Ada"), Answer(36, "1843")))]
    assert read(write_record(tmp_path / "train.jsonl")) == expected


def test_tables_as_the_hub_has_them(tmp_path):
    rows = [
        {
            "id": "q1",
            "context": CONTEXT,
            "question": "Who wrote it?",
            "answers": {"text": ["Ada"], "answer_start": [0]},
        },
        {"id": "q2", "context": CONTEXT, "question": "Who read it?", "answers": {"text": [], "answer_start": []}},
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.jsonl") == QUESTIONS
    assert read(tmp_path / "rows.parquet") == QUESTIONS


@pytest.mark.parametrize(
    ("start", "found"),
    [(1, r"answer_start = 1 .* expected 'Ada', found 'da '"), (90, r"found ''"), (-41, r"answer_start = -41 .*")],
)
def test_an_offset_that_does_not_match_is_refused(tmp_path, start, found):
    path = write_squad(tmp_path / "dev.json", NONE, {**FOUND, "answers": [{"text": "Ada", "answer_start": start}]})
    with pytest.raises(
        UserError, match=r"dev\.json, question 'q1': the answer with " + (found if "=" in found else ".*" + found)
    ):
        read(path)


def test_an_offset_in_record_is_checked_too(tmp_path):
    path = write_record(tmp_path / "train.jsonl")
    path.write_text(path.read_text().replace('"start": 36', '"start": 35'))
    with pytest.raises(UserError, match=r"question 7: the answer with start = 35 .* expected '1843', found ' 184'"):
        read(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**NONE, "is_impossible": False}, "question 'q2': is_impossible is false, but it has 0 answers"),
        ({**FOUND, "is_impossible": True}, "question 'q1': is_impossible is true, but it has 1 answer"),
        ({"id": "q3", "question": "?"}, "question 'q3': 'answers' has to be a list or an object, found only 'id', "),
        ({**FOUND, "question": None}, "question 'q1': 'question' has to be a string, got null"),
        ({**FOUND, "answers": [{"text": "Ada"}]}, "'answer_start' has to be a number, found only 'text'"),
        ({**FOUND, "answers": {"text": ["Ada"], "answer_start": []}}, "question 'q1': 1 answer, but 0 offsets"),
        ({"question": "?", "answers": []}, "data[0].paragraphs[0]: a question has no 'id'"),
        ([], "data[0].paragraphs[0]: expected an object for each question, got a list"),
    ],
)
def test_broken_questions_are_named(tmp_path, entry, message):
    with pytest.raises(UserError) as caught:
        read(write_squad(tmp_path / "dev.json", entry))
    assert str(caught.value).startswith(str(tmp_path / "dev.json"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.json", "[]", "expected an object with 'data', got a list"),
        ("dev.json", '{"data": [{"title": "t"}]}', "data[0]: 'paragraphs' has to be a list, found only 'title'"),
        ("dev.json", '{"data": []}\n{"data": []}\n', "line 2: not valid JSON: Extra data, column 1"),
        ("dev.json", b"\xff", "not valid UTF-8 at byte 0"),
        ("dev.jsonl", '{"text": "a"}\n', "row 1: 'context' has to be a string, found only 'text'"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("dev.json", {"title": "t"}),
        ("dev.json", {"paragraphs": [{"context": CONTEXT}]}),
        ("dev.jsonl", {"passage": {"text": CONTEXT}}),
    ],
)
def test_what_has_no_list_of_questions_is_left_out_alone(tmp_path, name, broken):
    path = tmp_path / name
    rows = [broken, {"passage": {"text": CONTEXT}, "qas": [{"query": "?", "answers": [], "idx": 7}]}]
    path.write_text(json.dumps({"data": rows}) if name == "dev.json" else "\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(UserError, match=r"has to be a list, found only .* --bad-rows skip\.$"):
        read(path)
    assert [question.id for question in read_questions(path, BadRows("skip"))] == [7]


def test_an_empty_context_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"question 'q2': the context is empty"):
        read(write_squad(tmp_path / "dev.json", NONE, context=" \n"))
