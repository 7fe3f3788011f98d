"""CSV and TSV as sources."""

import csv
import io
import random

import pytest

from tests.support.reading import pack, rows_of, spans_of
from toolkit import tables
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, delimited, lines

BOM = b"\xef\xbb\xbf"


def read(folder, name, content, **given):
    (folder / name).write_bytes(content)
    return rows_of(folder / name, **given)


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('id,text\n1,"a "b" c"\n2,d\n', "in the record at line 2, ',' expected after '\"'"),
        ('id,text\n1,a\n2,"two\nlines" x\n', "in the record at line 3, ',' expected after '\"'"),
        ('id,text\n1,a\n2,"b\n3,c\n', "in the record at line 3, a quotation mark is never closed"),
        ('id,text\n1,"a\n2,b\n3,c",d\n', "lines 2 to 4 are one record of 3 fields; the header has 2"),
        ('id,"text\n1,a\n2,b"\n3,c\n', "its header takes 3 lines"),
        ("id,text\n1,a\rb\n", r"in the record at line 2, a line ends with \r alone"),
    ],
)
def test_what_does_not_parse_is_named_by_line_and_the_file_refused(tmp_path, content, problem):
    with pytest.raises(UserError) as failure:
        read(tmp_path, "a.csv", content.encode())
    assert f"the source {tmp_path / 'a.csv'} is broken: {problem}. Repair it" in str(failure.value)


def test_a_field_without_an_end_in_sight_ends_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_FIELD_CHARACTERS", 100)

    with pytest.raises(UserError, match=r"in the record at line 3, a field has more than 2\^30 characters"):
        read(tmp_path, "a.csv", b'text\na\n"b\n' + b"row\n" * 50 + b'"\n')


@pytest.mark.parametrize("content", [b"text," * 30 + b"\n1\n", b"text\n" + b"1" * 120 + b"\n2\n"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_line_that_would_fill_memory_is_named(tmp_path, monkeypatch, name, content):
    for reader in (lines, delimited):
        monkeypatch.setattr(reader, "LARGEST_ROW_BYTES", 100)
    monkeypatch.setattr(lines, "_SPAN_BYTES", 8)

    with pytest.raises(UserError, match=f"{name} has a row of more than 100 bytes"):
        read(tmp_path, name, content)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_columns_may_be_separated_by_another_character(tmp_path, delimiter):
    content = f'id{delimiter}text\n1{delimiter}"a{delimiter}b"\n2{delimiter}c, d\n'
    assert values(read(tmp_path, "a.csv", content.encode(), delimiter=delimiter)) == [f"a{delimiter}b", "c, d"]


@pytest.mark.parametrize("header", ["text", "id,text", "text,label"])
@pytest.mark.parametrize("line", ["no comma", "one comma, as in prose", "roses are red,", '  "key": 1,', ""])
def test_a_text_of_many_lines_is_one_document(tmp_path, header, line):
    text = "\n".join([line] * 50)
    written = [{"id": "7", "text": text, "label": "pos"}[name] for name in header.split(",")]
    content = io.StringIO(newline="")
    csv.writer(content).writerows([header.split(","), written, written])

    rows = read(tmp_path, "a.csv", content.getvalue().encode())

    assert [(row.text, row.found) for row in rows] == [(text, "")] * 2


def random_table(rng):
    """Rows of a table of 1 to 4 columns, as they are written."""
    texts = ["", " a", "b", "3", "4.5", "two words", "it's", "", "é"] + ['"a, b"', '"say ""no"""', '""'] * 2
    texts += ['"two\nlines, or\nthree"', '"a\n\nb"', '"\n"'] * 2
    num_columns = rng.randint(1, 4)
    rows = [[rng.choice(texts) for _ in range(num_columns)] for _ in range(rng.randint(3, 40))]
    return [[f"c{number}" for number in range(num_columns - 1)] + ["text"], *rows]


@pytest.mark.parametrize("seed", range(50))
def test_a_table_without_a_stray_mark_is_read_as_the_csv_module_does(tmp_path, seed):
    table = random_table(random.Random(seed))
    content = "\n".join(",".join(fields) for fields in table)

    rows = read(tmp_path, "a.csv", content.encode())

    records = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    assert [row.text for row in rows] == [fields[-1] if fields else "" for fields in records[1:]]


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


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_many_spans_have_the_rows_of_the_file(tmp_path, monkeypatch, name, packed):
    monkeypatch.setattr(delimited, "_SPAN_BYTES", 50)
    monkeypatch.setattr(lines, "_SPAN_BYTES", 50)
    quote = '"' if name == "a.csv" else ""
    comma = "," if name == "a.csv" else "\t"
    texts = [f"é{quote and ','}{quote and chr(10)}{number}" for number in range(40)]
    content = "".join(f"{number}{comma}{quote}{text}{quote}\n" for number, text in enumerate(texts))
    content = f"id{comma}text\n{content}{content}".encode()

    spans = spans_of(pack(tmp_path / (name + packed), content))

    assert len(spans) > 5
    assert [row.text for span in spans for row in span.read() if not row.reason] == texts * 2
