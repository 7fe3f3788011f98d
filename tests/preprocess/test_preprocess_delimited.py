"""CSV and TSV as sources."""

import csv
import io
import random
import re

import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, csv_records, delimited, iterate_spans, lines
from toolkit.preprocess.sources import find_sources
from toolkit.preprocess.summary import notes

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


def test_a_field_without_an_end_in_sight_ends_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "_MOST_FIELD_CHARACTERS", 100)

    with pytest.raises(UserError, match=r"the record at line 3 has a field of more than"):
        read(tmp_path, "a.csv", b'text\na\n"b\n' + b"row\n" * 50 + b'"\n')


PLAIN_ROWS = [f"{number},text {number}" for number in range(2, 41)]  # as many as its line in the file


@pytest.mark.parametrize(
    ("closing", "found"),
    [('a pipe of 12" and 3"', "',' expected"), ('a pipe of 3"', "lines look like rows"), ('3",x', "3 fields")],
)
def test_every_line_that_a_stray_quotation_mark_swallows_is_a_bad_row(tmp_path, closing, found):
    lines = list(PLAIN_ROWS)
    lines[8], lines[28] = '10,"an inch mark at the front', f"30,{closing}"
    rows = read(tmp_path, "a.csv", "\n".join(["id,text", *lines, ""]).encode())

    assert values(rows)[:8] + values(rows)[29:] == [f"text {line}" for line in (*range(2, 10), *range(31, 41))]
    assert values(rows)[8:29] == [Reason.SWALLOWED] * 21
    assert rows[8].found.startswith("lines 10 to 30: ")
    assert found in rows[8].found
    assert "written twice" in rows[8].found


@pytest.mark.parametrize("header", ["text", "id,text", "text,label"])
@pytest.mark.parametrize("line", ["no comma", "one comma, as in prose", "roses are red,", '  "key": 1,', ""])
def test_a_text_of_many_lines_is_one_document(tmp_path, header, line):
    text = "\n".join([line] * 50)
    written = [{"id": "7", "text": text, "label": "pos"}[name] for name in header.split(",")]
    content = io.StringIO(newline="")
    csv.writer(content).writerows([header.split(","), written, written])

    rows = read(tmp_path, "a.csv", content.getvalue().encode())

    assert [(row.text, row.found) for row in rows] == [(text, "")] * 2


def test_the_rest_of_a_broken_record_is_no_document(tmp_path):
    content = b'id,text\n1,"he said "hi" and\nleft\nmore, text"\n2,"two\nlines"\n3,three\n'
    rows = read(tmp_path, "a.csv", content)

    assert values(rows) == [Reason.SWALLOWED] * 3 + ["two\nlines", "three"]
    assert rows[0].found.startswith("lines 2 to 4: ")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("row", "opened", "closed"),
    [
        ("{0}, text {0}", '{0},"an inch', '{0}, of 3"'),  # a blank behind every comma
        ("{0},,text {0}", '{0},,"an inch', '{0},,of 3"'),  # an empty column
        ("{0},,text {0}", '{0},",an inch', '{0},",of 3'),  # a mark in it
        ("{0},text {0},", '{0},"an inch,', '{0},of 3",'),  # the last is empty
        ("{0}.5,text {0},{0}.5", '{0}.5,"an inch,{0}.5', '{0}.5,of 3",{0}.5'),
        ("name {0},text {0}", 'name {0},"an inch', 'name {0},of 3"'),
        (" name {0}, text {0}", ' name {0},"an inch', ' name {0}, of 3"'),
    ],
)
def test_rows_are_told_from_a_text_by_the_habits_of_the_file(tmp_path, row, opened, closed, end):
    numbers = [number * 7 for number in range(60)]
    lines = [row.format(number) for number in numbers]
    lines[20], lines[40] = opened.format(numbers[20]), closed.format(numbers[40])
    header = ["id,text", "id,other,text", "id,text,other"][lines[0].count(",") - 1 + lines[0].endswith((",", ".5"))]
    rows = read(tmp_path, "a.csv", end.join([header, *lines, ""]).encode())

    assert values(rows)[20:41] == [Reason.SWALLOWED] * 21
    assert all(not row.reason for row in (*rows[:20], *rows[41:]))
    assert len(rows) == 60


@pytest.mark.parametrize("num_swallowed", [2, 3, 9])
def test_a_few_rows_that_count_on_are_rows(tmp_path, num_swallowed):
    lines = [f"text {number},{number}" for number in range(98, 118)]
    lines[5], lines[4 + num_swallowed] = '"an inch,103', f'of 3",{102 + num_swallowed}'
    rows = read(tmp_path, "a.csv", "\n".join(["text,id", *lines]).encode())

    assert values(rows)[5 : 5 + num_swallowed] == [Reason.SWALLOWED] * num_swallowed
    assert rows[5].found.startswith(f"lines 7 to {6 + num_swallowed}: ")
    assert len(rows) == 20


def test_a_header_that_swallowed_rows_is_broken(tmp_path):
    with pytest.raises(UserError, match=r"the header of .*a\.csv is broken: lines 1 to 3 are one record"):
        read(tmp_path, "a.csv", b'text,"size in inches"\na,3\n'.replace(b'inches"', b"inches") + b'b,3"\nc,4\n')
    assert values(read(tmp_path, "a.csv", b'id,"text\nin English"\n1,a\n', text_field="text\nin English")) == ["a"]


def random_table(rng, *, counts_on, legitimate):
    """Lines of a table of 1 to 4 columns, and where its rows begin in them."""
    num_columns = rng.randint(2 if counts_on else 1, 4)
    texts = ["", " a", "b", "3", "4.5", "two words", "it's", "", "é"] + ['"a, b"', '"say ""no"""', '""'] * 2
    if legitimate:
        texts += ['"two\nlines, or\nthree"', '"a\n\nb"', '"\n"'] * 2
    rows = [[rng.choice(texts) for _ in range(num_columns)] for _ in range(rng.randint(3, 40))]
    if counts_on:
        rows = [[str(number), *fields[1:]] for number, fields in enumerate(rows, start=rng.randint(0, 50))]
    return [[f"c{number}" for number in range(num_columns - 1)] + ["text"], *rows]


def with_stray_marks(rng, table, *, end):
    """The lines of a table with one or two quotation marks too many."""
    lines = end.join(",".join(fields) for fields in table).replace("\n", end).replace("\r\r", "\r").split("\n")
    first = 0 if len(table[0]) > 1 else 1
    for number in rng.sample(range(first, len(lines)), rng.randint(1, 2)):
        line = lines[number]
        begins = [place + 1 for place, each in enumerate(line) if each == ","]
        place = rng.choice([0, rng.randint(0, len(line)), *begins])
        lines[number] = f'{line[:place]}"{line[place:]}'
    return lines


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(150))
def test_no_line_goes_uncounted(tmp_path, seed, end):
    rng, counts_on = random.Random(seed), seed % 2 == 0
    lines = with_stray_marks(rng, random_table(rng, counts_on=counts_on, legitimate=not counts_on), end=end)
    broken, rows = "", []
    try:
        rows = read(tmp_path, "a.csv", "\n".join(lines).encode())
    except UserError as error:
        broken = str(error)

    if broken:
        assert re.search(r"lines? \d", broken) or "header" in broken
    else:
        assert sum(row.num_lines for row in rows) == len(lines) - 1 - (not lines[-1])
        assert not counts_on or len(rows) == len(lines) - 1


@pytest.mark.parametrize("seed", range(50))
def test_a_table_without_a_stray_mark_is_read_as_the_csv_module_does(tmp_path, seed):
    table = random_table(random.Random(seed), counts_on=False, legitimate=True)
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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_reading_resumes_at_the_start_of_every_span(tmp_path, monkeypatch, name, packed):
    monkeypatch.setattr(delimited, "_SPAN_BYTES", 50)
    monkeypatch.setattr(lines, "_SPAN_BYTES", 50)
    quote = '"' if name == "a.csv" else ""
    comma = "," if name == "a.csv" else "\t"
    texts = [f"é{quote and ','}{quote and chr(10)}{number}" for number in range(40)]
    content = "".join(f"{number}{comma}{quote}{text}{quote}\n" for number, text in enumerate(texts))
    stray = '8,"swallowed\n9,also\n10,"too"\n' if quote else ""
    content = f"id{comma}text\n{content}{stray}{content}".encode()
    path = tmp_path / (name + ".gz" if packed else name)
    if packed:
        import gzip

        content = gzip.compress(content)
    path.write_bytes(content)

    spans = spans_of(path)

    assert len(spans) > 5
    for number, span in enumerate(spans):
        rows = [row for later in spans_of(path, start=span.start) for row in later.read()]
        assert rows == [row for later in spans[number:] for row in later.read()]
    assert [row.text for span in spans for row in span.read() if not row.reason] == texts * 2


@pytest.mark.parametrize("workers", [1, 3])
def test_swallowed_rows_end_the_command(tmp_path, prepare, workers):
    lines = [f"{number},text {number}" for number in range(2, 2001)]
    lines[298], lines[1198] = '300,"an inch mark at the front', '1200,a pipe of 3"'
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *lines, ""]))

    message = r"901 of 1,999 rows .* \(45\.1%\)(?s:.*)swallowed by a quotation mark: 901 rows; first .*a\.csv row 299"
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "a.csv", workers=workers)

    result = prepare(tmp_path / "a.csv", workers=workers, max_bad_fraction=0.5, output=tmp_path / "corpus 2")
    assert result.manifest.documents == 1098
    assert result.manifest.skipped == {Reason.SWALLOWED: 901}


def test_records_of_several_lines_are_counted_at_the_end(tmp_path, prepare):
    (tmp_path / "a.csv").write_text('text,id\nfirst,1\n"' + "row\n" * 1200 + '",2\n"a\nb",3\n"","c\n\nd"\nlast,4\n')

    (note,) = notes(prepare(tmp_path / "a.csv"))

    assert note.startswith("3 CSV records with line breaks in quotation marks, 1,206 lines in all; ")
    assert f"the longest has 1,201 ({tmp_path / 'a.csv'} row 2). If these should be several rows" in note
