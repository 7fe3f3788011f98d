import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.reading import COMPRESS, pack, rows_of, zstd
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, json_array

BOM = b"\xef\xbb\xbf"


def texts(path, **given):
    return [row.text if row.reason is None else row.reason for row in rows_of(path, **given)]


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
        (b"[" * 100_000, Reason.BROKEN_JSON, "nested too deep"),
        (b'{"text": ' + b"9" * 5000 + b"}", Reason.BROKEN_JSON, "digits"),
        (b'{"txt": "a", "id": 1}', Reason.MISSING_FIELD, "no 'text'; its keys: 'txt', 'id'"),
        (b"{}", Reason.MISSING_FIELD, "its keys: none"),
        (b'{"text": 5}', Reason.WRONG_TYPE, "'text' is a number, not a string"),
        (b'{"text": null}', Reason.WRONG_TYPE, "null"),
        (b'{"text": true}', Reason.WRONG_TYPE, "true or false"),
        (b'{"text": ["a"]}', Reason.WRONG_TYPE, "a list"),
        (b'["text"]', Reason.WRONG_TYPE, "the row is a list, not an object"),
        (b'"text"', Reason.WRONG_TYPE, "the row is a string"),
        (b'{"text": "a\xff"}', Reason.NOT_UTF8, "invalid start byte at byte 11"),
        (b'{"text": "ab\\ud800"}', Reason.NOT_UTF8, "lone surrogate at character 2"),
        (b'{"text": ""}', Reason.EMPTY, ""),
        (b"  ", Reason.EMPTY, ""),
    ],
)
def test_each_bad_row_is_one_row_with_its_reason(tmp_path, line, reason, found):
    rows = rows_of(write(tmp_path, "a.jsonl", b'{"text": "1"}\n' + line + b'\n{"text": "2"}\n'))

    assert [row.text for row in rows] == ["1", "", "2"]
    assert [row.reason for row in rows] == [None, reason, None]
    assert found in rows[1].found


def test_another_field_can_hold_the_text(tmp_path):
    assert texts(write(tmp_path, "a.jsonl", b'{"body": "x"}\n'), text_field="body") == ["x"]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b'{"text": "x"}'), ("a.txt", b"x")])
def test_a_byte_order_mark_is_no_text(tmp_path, name, content):
    (row,) = rows_of(write(tmp_path, name, BOM + content))

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


@pytest.mark.parametrize("packed", ["", ".gz", ".zst", ".bz2", ".xz", ".GZ"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", b'{"text": "\xc3\xa9"}\n\n{"text": "2"}'),
        ("a.csv", b'text\n"\xc3\xa9"\n\n2\n'),
        ("a.TSV", b"text\n\xc3\xa9\n\n2\n"),
        ("a.jsonl", b'{"text": "\xc3\xa9"}\n\n{"text": "2"}'),
        ("a.json", b'{"text": "\xc3\xa9"}\n\n{"text": "2"}\n'),
        ("a.json", b'[{"text": "\xc3\xa9"}, {"text": ""}, {"text": "2"}]'),
        ("a.txt", b"\xc3\xa9\n\n2\n"),
    ],
)
def test_packed_files_hold_what_they_hold_unpacked(tmp_path, packed, name, content):
    assert texts(pack(tmp_path / (name + packed), content), txt_documents="line") == ["é", Reason.EMPTY, "2"]


@pytest.mark.parametrize("space", ["", " ", "\n\t", "\r\n  "])
@pytest.mark.parametrize("mark", [b"", BOM])
def test_an_array_of_rows_is_read_however_it_is_written(tmp_path, space, mark):
    elements = [
        '{"text": "a]}, {\\"[\\\\", "n": {"text": [1, {"x": "]"}]}}',
        '{"text": "\u2028é🙂"}',
        '{"n": 1, "text": "c"}',
    ]
    content = space + "[" + space + f"{space},{space}".join(elements) + space + "]" + space

    assert texts(write(tmp_path, "a.json", mark + content.encode())) == ['a]}, {"[\\', "\u2028é🙂", "c"]


def test_bad_elements_of_an_array_are_bad_rows(tmp_path):
    elements = [
        b'{"text": "1"}', b"5", b"[]", b'"x"', b"null", b"{}", b'{"text": 5}', b'{"text": "\xff"}', b'{"a": "\xff"}',
        b'{"text": "\\ud800"}', b'{"text": "\\ud83d\\ude42"}', b'{"text": ""}', b'{"text": "2"}',
    ]  # fmt: skip
    rows = rows_of(write(tmp_path, "a.json", b"[" + b",".join(elements) + b"]"))

    wrong, missing, no_utf8 = Reason.WRONG_TYPE, Reason.MISSING_FIELD, Reason.NOT_UTF8
    assert [row.reason for row in rows] == [
        None, wrong, wrong, wrong, wrong, missing, wrong, no_utf8, missing, no_utf8, None, Reason.EMPTY, None,
    ]  # fmt: skip
    assert rows[1].found == "the row is a number, not an object"
    assert rows[7].found == "a byte that is not UTF-8 at character 0"
    assert [row.text for row in rows if row.reason is None] == ["1", "🙂", "2"]


@pytest.mark.parametrize("content", [b"[]", b" [ \n ] \n", b"", b"\n"])
def test_files_without_any_row(tmp_path, content):
    assert [row for row in texts(write(tmp_path, "a.json", content)) if row != Reason.EMPTY] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "1"}, {"text": "2}]', "Unterminated string starting at at character 26 of line 1"),
        (b'[{"text": "1"}, {"text": "2"}', "Expecting ',' delimiter at character 30 of line 1"),
        (b'[{"text": "1"},\n {"text" 2}]', "Expecting ':' delimiter at character 10 of line 2"),
        (b"[" * 100_000 + b"]", "nested too deep"),
    ],
)
def test_an_array_that_is_broken_is_named_with_the_place(tmp_path, content, message):
    with pytest.raises(UserError) as failure:
        rows_of(write(tmp_path, "a.json", content))
    assert f"the JSON array in {tmp_path / 'a.json'} is broken: " in str(failure.value)
    assert message in str(failure.value)


def test_an_array_above_the_limit_is_refused_with_the_command_that_makes_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_MOST_BYTES", 20)

    assert texts(write(tmp_path, "a.jsonl", b'[{"text": "123456"}]')) == ["123456"]
    with pytest.raises(UserError, match=r"of more than 2 GiB.* jq -cn --stream 'fromstream.* > NEW\.jsonl"):
        rows_of(write(tmp_path, "a.jsonl", b'[{"text": "1234567"}]'))


LINE = b'{"text": "a line of text, a line of text, a line of text"}\n'


@pytest.mark.parametrize("ending", COMPRESS)
def test_files_of_several_members_are_one_text(tmp_path, ending):
    content = b"".join(map(COMPRESS[ending], (LINE * 2, b"", LINE[:10], LINE[10:])))

    assert len(rows_of(write(tmp_path, f"a.jsonl{ending}", content))) == 3


def test_frames_that_zstd_skips_are_skipped(tmp_path):
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"

    assert len(rows_of(write(tmp_path, "a.jsonl.zst", skipped + zstd(LINE) + skipped + zstd(LINE)))) == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt"])
@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("damage", ["not packed", "cut", "cut in the second", "garbage behind", "empty"])
def test_a_broken_packed_file_is_named(tmp_path, name, ending, damage):
    whole = COMPRESS[ending](LINE * 100)
    content = {
        "not packed": LINE,
        "cut": whole[:-9],
        "cut in the second": whole + whole[:20],
        "garbage behind": whole + b"garbage",
        "empty": b"",
    }[damage]

    with pytest.raises(UserError, match=rf"source .*/{name}{ending} (as (gzip|zstd|bz2|xz): \S|is empty)"):
        rows_of(write(tmp_path, name + ending, content), txt_documents="line")


def test_zeros_between_and_behind_streams_of_xz_are_padding(tmp_path):
    packed = lzma.compress(LINE)

    assert len(rows_of(write(tmp_path, "a.jsonl.xz", packed + bytes(8) + packed + bytes(1 << 17)))) == 2


def test_a_zstd_window_that_arrow_does_not_decompress_is_said_with_the_remedy(tmp_path):
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([(31 - 10) << 3])  # a frame with a window of 2^31 bytes
    raw_block = ((len(LINE) << 3) | 1).to_bytes(3, "little") + LINE

    with pytest.raises(UserError, match=r"window is larger than 128 MB .* Compress it again without --long") as failure:
        rows_of(write(tmp_path, "a.jsonl.zst", header + raw_block))
    assert "Download" not in str(failure.value)


def test_a_damaged_gzip_file_is_named_although_its_text_looks_right(tmp_path):
    content = bytearray(gzip.compress(LINE))
    content[-6] ^= 1  # in the checksum

    with pytest.raises(UserError, match="incorrect data check"):
        rows_of(write(tmp_path, "a.jsonl.gz", bytes(content)))


def parquet(folder, column, *, name="text", **options):
    pq.write_table(pa.table({"id": list(range(len(column))), name: column}), folder / "a.parquet", **options)
    return folder / "a.parquet"


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
     pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())],
    ids=str,
)  # fmt: skip
def test_parquet_text_of_every_kind(tmp_path, kind):
    column = pa.array(["é", "b", None, ""]).cast(kind)

    assert texts(parquet(tmp_path, column)) == ["é", "b", Reason.WRONG_TYPE, Reason.EMPTY]


def test_parquet_bytes_that_are_no_utf8_are_bad_rows(tmp_path):
    raw = pa.array([b"ok", b"\xff\xfe", b"fine"])
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())

    assert texts(parquet(tmp_path, column)) == ["ok", Reason.NOT_UTF8, "fine"]


def test_parquet_without_the_column_says_what_there_is(tmp_path):
    rows = rows_of(parquet(tmp_path, pa.array(["a", "b"]), name="body"))

    assert [row.reason for row in rows] == [Reason.MISSING_FIELD] * 2
    assert rows[0].found == "no column 'text'; its columns: id, body"


def test_parquet_with_another_type_says_which(tmp_path):
    rows = rows_of(parquet(tmp_path, pa.array([1, 2, 3])))

    assert [row.reason for row in rows] == [Reason.WRONG_TYPE] * 3
    assert rows[0].found == "column 'text' has type int64"


def test_an_integer_too_long_for_python_is_no_fault_of_the_text_beside_it(tmp_path):
    content = b'[{"text": "a"}, {"n": ' + b"9" * 5000 + b', "text": "b"}]'

    assert texts(write(tmp_path, "a.json", content)) == ["a", "b"]


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

    with pytest.raises(UserError, match=r"a\.parquet as Parquet: \S"):
        rows_of(path)
