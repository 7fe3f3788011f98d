"""JSON lines are read by a fast parser; rows and reasons are those of a plain reader with `json`, line by line."""

import codecs
import json
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reading import pack, rows_of
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, lines, rows


def plain(content):
    """(text, reason) of each line of a file."""
    content = content.removeprefix(codecs.BOM_UTF8)
    return [plain_row(line) for line in content.removesuffix(b"\n").split(b"\n")] if content else []


def plain_row(line):
    if not line.strip():
        return "", Reason.EMPTY
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "", Reason.NOT_UTF8
    except (ValueError, RecursionError):
        return "", Reason.BROKEN_JSON
    if not isinstance(value, dict):
        return "", Reason.WRONG_TYPE
    if "text" not in value:
        return "", Reason.MISSING_FIELD
    if not isinstance(value["text"], str):
        return "", Reason.WRONG_TYPE
    if any("\ud800" <= character <= "\udfff" for character in value["text"]):
        return "", Reason.NOT_UTF8
    return value["text"], None if value["text"] else Reason.EMPTY


characters = st.one_of(
    st.sampled_from('a"\\/{}[]:,\u2028\u0085\x00\x1f\x7f\t\r\né🙂\ufeff\ud83d\ude42\ud800\udfff'),
    st.characters(codec=None),
)
texts = st.text(characters, max_size=12)
numbers = st.one_of(st.floats(), st.integers(), st.integers(min_value=10**300, max_value=10**320))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["text", "text", "id", "Text", "te"]) | texts


def object_of(members, is_ascii, space):
    """A JSON object, in which keys may stand twice."""
    dumped = [
        json.dumps(key, ensure_ascii=is_ascii) + space + ":" + json.dumps(value, ensure_ascii=is_ascii)
        for key, value in members
    ]
    return "{" + ("," + space).join(dumped) + space + "}"


members = st.lists(st.tuples(keys, texts | values), max_size=4)
objects = st.builds(object_of, members, st.booleans(), st.sampled_from(["", " ", "\t", "\r"]))
others = values.map(json.dumps)
# A lone surrogate becomes bytes that are no UTF-8.
whole = st.one_of(objects, objects, objects, others).map(lambda text: text.encode("utf-8", "surrogatepass"))
SPECIAL = [
    b"", b" ", b"\r", b"\x0c", b"\xa0", b"{}", b"[]", b"null", b"NaN", b'{"text": NaN}', b'{"text": "a", "n": NaN}',
    b'{"text": "a", "n": -Infinity}', b'{"text": "a"} {"text": "b"}', b'{"text": "a"}\0', b'{"text": "a",}',
    b'{"text": "a", "n": 01}', b'{"text": "a", "n": 1.}', b'{"text": "a", "n": +1}', b'{"text": "a", "n": 1e999}',
    b'{"text": "a", "n": ' + b"9" * 5000 + b"}", b'{"text": "a", "n": 1.' + b"9" * 5000 + b"}",
    b'{"text": "a", "n": -' + b"9" * 4300 + b"}", b'{"text": "a", "n": "\\ud800"}', b'{"text": "\\udc00\\ud800"}',
    b'{"text": "a", "n": "\xff"}', b'{"text": "a", "\xed\xa0\x80": 1}', b'{"text": "a", "\\ud800": 1}',
    b'{"text": "a", "text": "b"}', b'{"text": 1, "text": "b"}', b'{"text": "b", "text": null}', b'{"t\\u0065xt": "a"}',
    b'{"text": "\\u12"}', b'{"text": "\\q"}', b'{"text": "\t"}', b'{"text": "\xf0\x9f\x99\x82\xe2\x80\xa8"}',
    b'{"text": "2024-01-01T00:00:00"}', b'{"text": "1"}', b'{"text": ', b'"a"}', b'{"text": "\xef\xbb\xbf"}',
    codecs.BOM_UTF8 + b'{"text": "a"}', b'{"text": "a", "n": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"text": "a", "n": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"n": ' * 100_000,
]  # fmt: skip
cut = st.builds(
    lambda line, start, stop, put: line[: start % (len(line) + 1)] + put + line[stop % (len(line) + 1) :],
    whole, st.integers(0, 99), st.integers(0, 99), st.sampled_from([b"", b"\xff", b"\\", b'"', b"}", b"\0", b"\xc3"]),
)  # fmt: skip
line = st.one_of(whole, whole, st.sampled_from(SPECIAL), cut).map(lambda line: line.replace(b"\n", b" "))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "a.jsonl"


def check(path, content, span_bytes):
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_SPAN_BYTES", span_bytes)
        found = rows_of(path)
    assert [(row.text, row.reason) for row in found] == plain(content)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(line, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans(),
    st.sampled_from([1, 40, 1 << 20]),
)  # fmt: skip
def test_rows_and_reasons_are_those_of_a_plain_reader(path, written, end, has_mark, has_last_end, span_bytes):
    if b"".join(written).lstrip(b" \t\r\n").startswith(b"["):  # one array is another layout
        written = [b"{}", *written]
    content = end.join(written) + (end if has_last_end and written else b"")
    check(path, (codecs.BOM_UTF8 if has_mark else b"") + content, span_bytes)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.txt.gz"])
@pytest.mark.parametrize("txt_documents", ["file", "paragraph", "line"])
def test_a_row_that_would_fill_memory_is_named(tmp_path, monkeypatch, name, txt_documents):
    monkeypatch.setattr(lines, "_SPAN_BYTES", 8)
    monkeypatch.setattr(lines, "LARGEST_ROW_BYTES", 100)
    for content, is_one in ((b"12345678\n\n" * 10, False), (b"1234567\n\n" + b"1" * 120 + b"\n\n12", True)):
        path = pack(tmp_path / name, content)
        with pytest.raises(UserError, match=f"{name} has a row of more than 100 bytes") if is_one else nullcontext():
            rows_of(path, txt_documents=txt_documents)


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_each_special_line_between_good_ones(path, number):
    check(path, b'{"text": "1"}\n' + SPECIAL[number] + b'\n{"text": "2"}\n', 1 << 20)


def test_good_lines_do_not_come_to_the_slow_parser(path, monkeypatch):
    slow = []
    monkeypatch.setattr(rows, "_row_from_doubtful_line", lambda line, text_field: slow.append(line))
    written = [
        {"id": number, "text": "é\u2028🙂\x00\\" * number or "x", "n": [1.5, None, {"a": True}]} for number in range(9)
    ]
    content = "".join(json.dumps(row, ensure_ascii=row["id"] % 2 == 0) + "\r\n" for row in written)

    check(path, content.encode(), 1 << 20)
    assert slow == []
