"""CSV and TSV as sources."""

import csv
import io

import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, delimited, iterate_spans, lines
from toolkit.preprocess.sources import find_sources

BOM = b"\xef\xbb\xbf"


def spans_of(path, *, text_field="text", start=0):
    (source,) = find_sources([str(path)])
    return list(iterate_spans(source, text_field=text_field, txt_documents="file", start=start))


def read(folder, name, content, **given):
    (folder / name).write_bytes(content)
    return [row for span in spans_of(folder / name, **given) for row in span.read()]


def values(rows):
    return [row.reason or row.text for row in rows]


def test_a_quoted_text_may_hold_everything(tmp_path):
    written = [["1", 'He said "no",\nand\r\nleft.'], ["2", "a, b"], ["3", "\u2028é\x85\ttab"], ["4", ""]]
    content = io.StringIO(newline="")
    csv.writer(content, lineterminator="\r\n").writerows([["id", "text"], *written])

    rows = read(tmp_path, "a.csv", BOM + content.getvalue().encode())

    assert values(rows) == [written[0][1], "a, b", "\u2028é\x85\ttab", Reason.EMPTY]


def test_tsv_has_no_quoting(tmp_path):
    rows = read(tmp_path, "a.tsv", BOM + b'text\tid\r\n"a "b\t1\r\n"c\t2\r\nlast\t3')

    assert values(rows) == ['"a "b', '"c', "last"]


@pytest.mark.parametrize(("name", "comma"), [("a.csv", b","), ("a.tsv", b"\t")])
def test_each_bad_row_is_one_row_with_its_reason(tmp_path, name, comma):
    lines = [b"id,text", b"1,one", b"2", b"", b"3,three,more", b"4,\xff", b"\xff,five", b"6,", b"7,seven"]
    rows = read(tmp_path, name, b"\n".join(lines).replace(b",", comma))

    wrong, no_utf8 = Reason.WRONG_COLUMNS, Reason.NOT_UTF8
    assert values(rows) == ["one", wrong, Reason.EMPTY, wrong, no_utf8, no_utf8, Reason.EMPTY, "seven"]
    assert rows[3].found == "3 fields; the header has 2"
    assert "invalid start byte at byte" in rows[4].found


def test_a_record_with_broken_quoting_spoils_itself_only(tmp_path):
    rows = read(tmp_path, "a.csv", b'text\n"a "b" c"\n"d"\ne\rf\ng\n')

    assert values(rows) == [Reason.BROKEN_CSV, "d", Reason.BROKEN_CSV, "g"]
    assert "expected after" in rows[0].found


def test_a_quotation_mark_that_is_never_closed_ends_the_reading(tmp_path):
    with pytest.raises(UserError, match=r"a\.csv is broken: a quotation mark in the record at byte 7 is never closed"):
        read(tmp_path, "a.csv", b'text\na\n"b\nc\n')


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_file_without_the_column_says_what_there_is(tmp_path, name):
    rows = read(tmp_path, name, b"body\n1\n2\n")

    assert values(rows) == [Reason.MISSING_FIELD] * 2
    assert rows[0].found == "no column 'text'; its columns: ['body']"
    assert values(read(tmp_path, name, b"body\n1\n2\n", text_field="body")) == ["1", "2"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("content", [b"", b"text", b"text\n", BOM])
def test_files_without_any_record(tmp_path, name, content):
    assert read(tmp_path, name, content) == []


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_reading_resumes_at_the_start_of_every_span(tmp_path, monkeypatch, name, packed):
    monkeypatch.setattr(delimited, "_SPAN_BYTES", 50)
    monkeypatch.setattr(lines, "_SPAN_BYTES", 50)
    quote = '"' if name == "a.csv" else ""
    comma = "," if name == "a.csv" else "\t"
    texts = [f"é{quote and ','}{quote and chr(10)}{number}" for number in range(40)]
    content = "".join(f"{number}{comma}{quote}{text}{quote}\n" for number, text in enumerate(texts))
    content = f"id{comma}text\n{content}".encode()
    path = tmp_path / (name + ".gz" if packed else name)
    if packed:
        import gzip

        content = gzip.compress(content)
    path.write_bytes(content)

    spans = spans_of(path)

    assert len(spans) > 5
    for number, span in enumerate(spans):
        rows = [row.text for later in spans_of(path, start=span.start) for row in later.read()]
        assert rows == [row.text for later in spans[number:] for row in later.read()]
    assert [row.text for span in spans for row in span.read()] == texts
