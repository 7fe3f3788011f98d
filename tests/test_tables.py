import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.core.errors import UserError
from toolkit.tables import read_table


def test_tsv_has_no_quoting(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'\xef\xbb\xbftext\tlabel\r\n"Quote me\tyes\r\nsay "no"\tno\r\na\xe2\x80\xa8b\tyes\r\n')
    table = read_table(path)
    assert table.columns == ("text", "label")
    assert table.rows == [
        {"text": '"Quote me', "label": "yes"},
        {"text": 'say "no"', "label": "no"},
        {"text": "a\u2028b", "label": "yes"},
    ]


def test_txt_is_read_like_tsv_as_mrpc_is_published(tmp_path):
    path = tmp_path / "msr_paraphrase_test.txt"
    header = b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    path.write_bytes(header + b'1\t10\t11\tHe said: "No.\tHe said no.\r\n0\t12\t13\tA"\tB\r\n')
    table = read_table(path)
    assert table.columns == ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    assert [row["#1 String"] for row in table.rows] == ['He said: "No.', 'A"']
    assert [row["Quality"] for row in table.rows] == ["1", "0"]


def test_csv_is_quoted(tmp_path):
    path = tmp_path / "a.csv"
    long = "x" * 200_000
    path.write_text(f'text,label\n"one, ""two""\nthree",1\n{long},0\n', encoding="utf-8")
    assert read_table(path).rows == [{"text": 'one, "two"\nthree', "label": "1"}, {"text": long, "label": "0"}]


def test_jsonl_keeps_types_and_ends_lines_at_newline_only(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\u2028b\x85c", "label": 1}\n\n{"text": "d", "label": true, "extra": 0}\n', "utf-8")
    table = read_table(path)
    assert table.columns == ("text", "label", "extra")
    assert table.rows[0] == {"text": "a\u2028b\x85c", "label": 1}
    assert table.rows[1]["label"] is True


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_may_be_one_array_or_lines(tmp_path, name):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
    for content in (json.dumps(rows, indent=1), "\n".join(map(json.dumps, rows))):
        (tmp_path / name).write_text(content)
        assert read_table(tmp_path / name).rows == rows


def test_parquet_keeps_types(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "label": pa.array([3, 4], pa.int8())}), path)
    assert read_table(path).rows == [{"text": "a", "label": 3}, {"text": "b", "label": 4}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"x", r"a\.xlsx: expected a table of examples, got a \.xlsx file"),
        ("a.tsv", b"", r"a\.tsv: the file is empty"),
        ("a.csv", b"", r"a\.csv: the file is empty"),
        ("a.tsv", b"text\tlabel\n", r"a\.tsv: no examples in this file"),
        ("a.jsonl", b"\n", r"a\.jsonl: no examples in this file"),
        ("a.tsv", b"text\tlabel\na\tb\nc\n",
         r"a\.tsv, line 3: 1 field, but the first line names 2 columns: text, label"),
        ("a.tsv", b"text\ttext\na\tb\n", r"a\.tsv: duplicate column names"),
        ("a.csv", b'text,label\n"a,b\n',
         r"a\.csv is broken: in the record at line 2, a quotation mark is never closed"),
        ("a.jsonl", b'{"text": "a"}\n{"text":\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n["a"]\n', r"a\.jsonl, row 2: expected a JSON object, got a list"),
        ("a.json", b'[\n{"text" "a"}]', r"a\.json, line 2: not valid JSON: Expecting ':' delimiter, column 9"),
        ("a.tsv", b"text\tlabel\n\xff\tb\n", r"a\.tsv: not valid UTF-8 at byte 11"),
        ("a.parquet", b"PAR1, it is not", r"a\.parquet: not a valid Parquet file"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / name)
