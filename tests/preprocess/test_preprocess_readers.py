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


LINE = b'{"text": "a line of text, a line of text, a line of text"}\n'
TEXT = "a line of text, a line of text, a line of text"
SKIPPED = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"  # a frame that zstd passes over
ODD = "a\u2028b\u0085c\x0bd\x0ce\rf"
EMPTY, NOT_UTF8 = Reason.EMPTY, Reason.NOT_UTF8
ELEMENTS = [
    '{"text": "a]}, {\\"[\\\\", "n": {"text": [1, {"x": "]"}]}}',
    '{"text": "\u2028é🙂"}',
    '{"n": 1, "text": "c"}',
]


def array(space):
    return (space + "[" + space + f"{space},{space}".join(ELEMENTS) + space + "]" + space).encode()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        # Lines end at a newline only.
        ("a.jsonl", json.dumps({"text": ODD}, ensure_ascii=False).encode() + b'\r\n{"text": "2"}', [ODD, "2"]),
        ("a.jsonl", BOM + b'{"text": "x"}', ["x"]),
        ("a.txt", BOM + b"x", ["x"]),
        *(("a.json", mark + array(space), ['a]}, {"[\\', "\u2028é🙂", "c"])
          for mark in (b"", BOM) for space in ("", " ", "\n\t", "\r\n  ")),
        # An integer too long for Python is no fault of the text beside it.
        ("a.json", b'[{"text": "a"}, {"n": ' + b"9" * 5000 + b', "text": "b"}]', ["a", "b"]),
        *(("a.json", content, []) for content in (b"[]", b" [ \n ] \n", b"")),
        ("a.json", b"\n", [EMPTY]),
        *(("a.jsonl" + ending, b"".join(map(compress, (LINE * 2, b"", LINE[:10], LINE[10:]))), [TEXT] * 3)
          for ending, compress in COMPRESS.items()),
        ("a.jsonl.zst", SKIPPED + zstd(LINE) + SKIPPED + zstd(LINE), [TEXT] * 2),
        # Zeros between and behind streams are padding.
        ("a.jsonl.xz", lzma.compress(LINE) + bytes(8) + lzma.compress(LINE) + bytes(1 << 17), [TEXT] * 2),
    ],
)  # fmt: skip
def test_files_are_read(tmp_path, name, content, expected):
    assert texts(write(tmp_path, name, content)) == expected


def test_another_field_can_hold_the_text(tmp_path):
    assert texts(write(tmp_path, "a.jsonl", b'{"body": "x"}\n'), text_field="body") == ["x"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\n\nc\n", (["a\nb\n\nc\n"], ["a\nb", "c"], ["a", "b", EMPTY, "c"])),
        (b"\n a\n \t\n\nb", (["\n a\n \t\n\nb"], [" a", "b"], [EMPTY, " a", " \t", EMPTY, "b"])),
        (b"a\r\nb\r\n\r\nc\r\n", (["a\r\nb\r\n\r\nc\r\n"], ["a\r\nb", "c"], ["a", "b", EMPTY, "c"])),
        ("a\u2028b\x0c\n".encode(), (["a\u2028b\x0c\n"], ["a\u2028b\x0c"], ["a\u2028b\x0c"])),
        (b"\xffa\n\nb\n", ([NOT_UTF8], [NOT_UTF8, "b"], [NOT_UTF8, EMPTY, "b"])),
        (b"", ([EMPTY], [], [])),
        (b"\n\n", (["\n\n"], [], [EMPTY, EMPTY])),
    ],
)
def test_three_kinds_of_documents_in_txt(tmp_path, content, expected):
    path = write(tmp_path, "a.txt", content)
    assert tuple(texts(path, txt_documents=kind) for kind in ("file", "paragraph", "line")) == expected


def damaged(content):
    """In the checksum: the text looks right."""
    return content[:-6] + bytes([content[-6] ^ 1]) + content[-5:]


# A frame with a window of 2^31 bytes, and a raw block.
WIDE = b"\x28\xb5\x2f\xfd\0" + bytes([(31 - 10) << 3]) + ((len(LINE) << 3) | 1).to_bytes(3, "little") + LINE
BROKEN_ARRAY = r"the JSON array in .*/a\.json is broken: .*"
PACKED = [
    (f"a{end}{ending}", content, rf"source .*/a{end}{ending} (as (gzip|zstd|bz2|xz): \S|is empty)")
    for end in (".jsonl", ".json", ".txt")
    for ending, compress in COMPRESS.items()
    for whole in [compress(LINE * 100)]
    for content in (LINE, whole[:-9], whole + whole[:20], whole + b"garbage", b"")
]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"text": "1"}, {"text": "2}]', f"{BROKEN_ARRAY}Unterminated .* at character 26 of line 1"),
        ("a.json", b'[{"text": "1"}, {"text": "2"}', f"{BROKEN_ARRAY}',' delimiter at character 30 of line 1"),
        ("a.json", b'[{"text": "1"},\n {"text" 2}]', f"{BROKEN_ARRAY}':' delimiter at character 10 of line 2"),
        ("a.json", b"[" * 100_000 + b"]", f"{BROKEN_ARRAY}nested too deep"),
        ("a.jsonl.zst", WIDE, r"window is larger than 128 MB (?!.*Download).* Compress it again without --long"),
        ("a.jsonl.gz", damaged(gzip.compress(LINE, mtime=0)), "incorrect data check"),
        *PACKED,
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        rows_of(write(tmp_path, name, content), txt_documents="line")


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


def test_an_array_above_the_limit_is_refused_with_the_command_that_makes_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_MOST_BYTES", 20)

    assert texts(write(tmp_path, "a.jsonl", b'[{"text": "123456"}]')) == ["123456"]
    with pytest.raises(UserError, match=r"of more than 2 GiB.* jq -cn --stream 'fromstream.* > NEW\.jsonl"):
        rows_of(write(tmp_path, "a.jsonl", b'[{"text": "1234567"}]'))


# The first of them is none.
NO_UTF8 = pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff\xfe", b"ok", b"fine"]).buffers())


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


@pytest.mark.parametrize(
    ("column", "name", "reasons", "found"),
    [
        (pa.array(["a", "b"]), "body", [Reason.MISSING_FIELD] * 2, "no column 'text'; its columns: id, body"),
        (pa.array([1, 2, 3]), "text", [Reason.WRONG_TYPE] * 3, "column 'text' has type int64"),
        (NO_UTF8, "text", [NOT_UTF8, None, None], ""),
    ],
)
def test_bad_columns_of_parquet_are_bad_rows_and_say_what_there_is(tmp_path, column, name, reasons, found):
    rows = rows_of(parquet(tmp_path, column, name=name))
    assert [row.reason for row in rows] == reasons
    assert found in rows[0].found
    assert [row.text for row in rows if row.reason is None] == ["ok", "fine"] * (column is NO_UTF8)


@pytest.mark.parametrize("damage", ["not parquet", "cut", "inside"])
def test_a_broken_parquet_file_is_named(tmp_path, damage):
    path = parquet(tmp_path, pa.array([f"text {number}" for number in range(5000)]), compression="zstd")
    content = path.read_bytes()
    start, rest = content[: len(content) // 2], content[len(content) // 2 + 1000 :]
    path.write_bytes({"not parquet": b"hello", "cut": start, "inside": start + bytes(1000) + rest}[damage])
    with pytest.raises(UserError, match=r"a\.parquet as Parquet: \S"):
        rows_of(path)
