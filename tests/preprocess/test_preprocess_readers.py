import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason
from toolkit.preprocess.sources import find_sources
from toolkit.preprocess.spans import iterate_spans

BOM = b"\xef\xbb\xbf"


def read(path, *, text_field="text", txt_documents="file"):
    (source,) = find_sources([str(path)])
    spans = iterate_spans(source, text_field=text_field, txt_documents=txt_documents)
    return [row for span in spans for row in span.read()]


def texts(path, **given):
    return [row.text if row.reason is None else row.reason for row in read(path, **given)]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def test_json_lines_end_at_newline_only(tmp_path):
    text = "a\u2028b\u0085c\x0bd\x0ce\rf"
    lines = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\r\n" + b'{"text": "2"}'

    assert texts(write(tmp_path, "a.jsonl", lines)) == [text, "2"]


@pytest.mark.parametrize(
    ("line", "reason", "found"),
    [
        (b'{"text": "a"', Reason.BROKEN_JSON, "delimiter"),
        (b"[" * 100_000, Reason.BROKEN_JSON, "recursion"),
        (b'{"text": ' + b"9" * 5000 + b"}", Reason.BROKEN_JSON, "digits"),
        (b'{"txt": "a", "id": 1}', Reason.MISSING_FIELD, "no 'text'; its keys: 'txt', 'id'"),
        (b"{}", Reason.MISSING_FIELD, "its keys: none"),
        (b'{"text": 5}', Reason.WRONG_TYPE, "'text' is a JSON number, not a string"),
        (b'{"text": null}', Reason.WRONG_TYPE, "null"),
        (b'{"text": true}', Reason.WRONG_TYPE, "boolean"),
        (b'{"text": ["a"]}', Reason.WRONG_TYPE, "array"),
        (b'["text"]', Reason.WRONG_TYPE, "the row is a JSON array, not an object"),
        (b'"text"', Reason.WRONG_TYPE, "the row is a JSON string"),
        (b'{"text": "a\xff"}', Reason.NOT_UTF8, "invalid start byte at byte 11"),
        (b'{"text": "ab\\ud800"}', Reason.NOT_UTF8, "lone surrogate at character 2"),
        (b'{"text": ""}', Reason.EMPTY, ""),
        (b"  ", Reason.EMPTY, ""),
    ],
)
def test_each_bad_row_is_one_row_with_its_reason(tmp_path, line, reason, found):
    rows = read(write(tmp_path, "a.jsonl", b'{"text": "1"}\n' + line + b'\n{"text": "2"}\n'))

    assert [row.text for row in rows] == ["1", "", "2"]
    assert [row.reason for row in rows] == [None, reason, None]
    assert found in rows[1].found


def test_a_pair_of_surrogates_is_a_character(tmp_path):
    assert texts(write(tmp_path, "a.jsonl", b'{"text": "\\ud83d\\ude42"}\n')) == ["🙂"]


def test_another_field_can_hold_the_text(tmp_path):
    assert texts(write(tmp_path, "a.jsonl", b'{"body": "x"}\n'), text_field="body") == ["x"]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b'{"text": "x"}'), ("a.txt", b"x")])
def test_a_byte_order_mark_is_no_text(tmp_path, name, content):
    (row,) = read(write(tmp_path, name, BOM + content))

    assert row.text == "x"


@pytest.mark.parametrize(
    ("content", "file", "paragraph", "line"),
    [
        (b"a\nb\n\nc\n", ["a\nb\n\nc\n"], ["a\nb", "c"], ["a", "b", Reason.EMPTY, "c"]),
        (b"\n a\n \t\n\nb", ["\n a\n \t\n\nb"], [" a", "b"], [Reason.EMPTY, " a", " \t", Reason.EMPTY, "b"]),
        (b"a\r\nb\r\n\r\nc\r\n", ["a\r\nb\r\n\r\nc\r\n"], ["a\r\nb", "c"], ["a", "b", Reason.EMPTY, "c"]),
        ("a\u2028b\x0c\n".encode(), ["a\u2028b\x0c\n"], ["a\u2028b\x0c"], ["a\u2028b\x0c"]),
        (b"\xffa\n\nb\n", [Reason.NOT_UTF8], [Reason.NOT_UTF8, "b"], [Reason.NOT_UTF8, Reason.EMPTY, "b"]),
        (b"", [Reason.EMPTY], [], []),
        (b"\n\n", ["\n\n"], [], [Reason.EMPTY, Reason.EMPTY]),
    ],
)  # fmt: skip
def test_three_kinds_of_documents_in_txt(tmp_path, content, file, paragraph, line):
    path = write(tmp_path, "a.txt", content)

    assert texts(path) == file
    assert texts(path, txt_documents="paragraph") == paragraph
    assert texts(path, txt_documents="line") == line


def parquet(folder, column, *, name="text", **options):
    pq.write_table(pa.table({"id": list(range(len(column))), name: column}), folder / "a.parquet", **options)
    return folder / "a.parquet"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_text_of_every_kind(tmp_path, kind):
    column = (
        pa.array(["é", "b", None, ""]).cast(kind) if kind != pa.binary() else pa.array(["é".encode(), b"b", None, b""])
    )

    assert texts(parquet(tmp_path, column)) == ["é", "b", Reason.WRONG_TYPE, Reason.EMPTY]


def test_parquet_is_read_in_order_over_row_groups(tmp_path):
    written = [f"text {number}" for number in range(1000)]
    rows = read(parquet(tmp_path, pa.array(written), row_group_size=64))

    assert [row.text for row in rows] == written


def test_parquet_bytes_that_are_no_utf8_are_bad_rows(tmp_path):
    raw = pa.array([b"ok", b"\xff\xfe", b"fine"])
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())

    assert texts(parquet(tmp_path, column)) == ["ok", Reason.NOT_UTF8, "fine"]


def test_parquet_without_the_column_says_what_there_is(tmp_path):
    rows = read(parquet(tmp_path, pa.array(["a", "b"]), name="body"))

    assert [row.reason for row in rows] == [Reason.MISSING_FIELD] * 2
    assert rows[0].found == "no column 'text'; there are: id, body"


def test_parquet_with_another_type_says_which(tmp_path):
    rows = read(parquet(tmp_path, pa.array([1, 2, 3])))

    assert [row.reason for row in rows] == [Reason.WRONG_TYPE] * 3
    assert rows[0].found == "column 'text' has type int64"


@pytest.mark.parametrize("damage", ["not parquet", "cut", "inside"])
def test_a_broken_parquet_file_is_named(tmp_path, damage):
    path = parquet(tmp_path, pa.array([f"text {number}" for number in range(5000)]), compression="zstd")
    content = path.read_bytes()
    middle = len(content) // 2
    broken = {
        "not parquet": b"hello",
        "cut": content[:middle],
        "inside": content[:middle] + bytes(1000) + content[middle + 1000 :],
    }[damage]
    path.write_bytes(broken)

    with pytest.raises(UserError, match=r"a\.parquet is not a Parquet file that can be read: \S"):
        read(path)
