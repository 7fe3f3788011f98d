"""Spans: where they are cut changes nothing, and any thread can read them in any order."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reading import pack, rows_of, spans_of
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, json_array, lines, parquet

PACKED = ("", ".gz", ".zst")
HUGE = 1 << 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spans")


def check_cuts(path, *, span_size, txt_documents="paragraph"):
    """The rows are those of one span that holds all."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (lines, json_array, parquet):
            patch.setattr(module, "_SPAN_BYTES", HUGE)
        whole = rows_of(path, txt_documents=txt_documents)
        for module in (lines, json_array, parquet):
            patch.setattr(module, "_SPAN_BYTES", span_size)
        spans = spans_of(path, txt_documents=txt_documents)
        assert list(chain(*(span.read() for span in spans))) == whole
        assert [span.end_bytes for span in spans] == sorted(span.end_bytes for span in spans)
        assert not spans or spans[-1].end_bytes == path.stat().st_size


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("txt_documents", ["file", "paragraph", "line"])
@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([b"a", b" b", b"\n", b"\r\n", b"\n\n", b" \t\n", "é\u2028".encode(), b"\xff"])),
    has_mark=st.booleans(),
    span_size=st.integers(2, 12),
)
def test_plain_text_is_cut_between_documents(folder, packed, txt_documents, pieces, has_mark, span_size):
    content = (b"\xef\xbb\xbf" if has_mark else b"") + b"".join(pieces)
    path = pack(folder / f"a.txt{packed}", content)

    check_cuts(path, span_size=span_size, txt_documents=txt_documents)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@settings(max_examples=40, deadline=None)
@given(
    found=st.lists(
        st.sampled_from([b'{"text": "a"}', '{"text": "é\u2028ü"}'.encode(), b"", b"  \r", b'{"text": "\xff"}', b"{]"])
    ),
    ends=st.sampled_from([b"", b"\n"]),
    span_size=st.integers(2, 60),
)
def test_json_lines_are_cut_at_line_ends(folder, packed, ending, found, ends, span_size):
    check_cuts(pack(folder / f"b{ending}{packed}", b"\n".join(found) + ends), span_size=span_size)


@pytest.mark.parametrize("packed", PACKED)
@settings(max_examples=40, deadline=None)
@given(
    found=st.lists(
        st.sampled_from(
            [
                b'{"text": "a]},{[\\"\\\\"}', '{"text": "é\u2028🙂", "n": [1, {"a": []}]}'.encode(), b"12", b"[]",
                b'{"text": "\xff"}', b'{"text": "\\ud83d"}', b'"x"', b"-1.5e10", b"null", b'{"text": "\\ud83d\\ude42"}',
            ]
        )
    ),
    space=st.sampled_from([b"", b" ", b"\n  ", b"\r\n\t"]),
    has_mark=st.booleans(),
    span_size=st.integers(2, 60),
)  # fmt: skip
def test_arrays_are_cut_between_elements(folder, packed, found, space, has_mark, span_size):
    content = space + b"[" + space + (space + b"," + space).join(found) + space + b"]" + space
    path = pack(folder / f"c.json{packed}", (b"\xef\xbb\xbf" if has_mark else b"") + content)

    check_cuts(path, span_size=span_size)
    assert len(rows_of(path)) == len(found)


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=8)), max_size=60),
    group_rows=st.integers(1, 20),
    span_size=st.integers(1, 100),
    most_group_bytes=st.sampled_from([0, 40, HUGE]),
)
def test_parquet_is_cut_at_row_groups_and_in_large_ones(folder, texts, group_rows, span_size, most_group_bytes):
    path = folder / "d.parquet"
    pq.write_table(pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())}), path,
                   row_group_size=group_rows)  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_MOST_GROUP_BYTES", most_group_bytes)
        check_cuts(path, span_size=span_size)
        rows = rows_of(path)
    assert [None if row.reason is Reason.WRONG_TYPE else row.text for row in rows] == texts


@pytest.fixture(scope="module")
def texts():
    words = ["the", "miller's", "café", "—", "“red”", "door\n", "and\tseven\\boats", "🙂", ""]
    generator = random.Random(0)
    return [" ".join(generator.choices(words, k=generator.randint(1, 900))) for _ in range(6000)]


def written(folder, texts, ending):
    path = folder / f"real{ending}"
    if ending.endswith(".parquet"):
        pq.write_table(pa.table({"text": texts}), path, row_group_size=100000 if "big" in ending else 500)
    elif ending.startswith(".txt"):
        pack(path, "\n\n".join(text.replace("\n", " ") for text in texts).encode())
    elif ending.startswith(".json") and not ending.startswith(".jsonl"):
        pack(path, json.dumps([{"text": text} for text in texts]).encode())
    else:
        pack(path, b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    return path


@pytest.mark.parametrize("ending", [".parquet", ".big.parquet", ".jsonl", ".json", ".txt", ".jsonl.gz", ".json.zst"])
def test_spans_hold_some_megabytes_and_threads_read_them_in_any_order(folder, texts, ending):
    spans = spans_of(written(folder, texts, ending), txt_documents="paragraph")

    order = list(range(len(spans)))
    random.Random(1).shuffle(order)
    with ThreadPoolExecutor(4) as pool:
        rows = dict(zip(order, pool.map(lambda number: spans[number].read(), order), strict=True))
    found = [[row.text for row in rows[number]] for number in range(len(spans))]
    sizes = [sum(len(text.encode()) for text in span) for span in found]
    assert list(chain(*found)) == ([text.replace("\n", " ") for text in texts] if ending == ".txt" else texts)
    assert len(spans) >= 3
    assert all(2.5e6 < size < 8e6 for size in sizes[:-1])


def test_a_source_that_changes_while_it_is_read_is_an_error(folder, texts):
    path = written(folder, texts, ".jsonl")
    spans = spans_of(path)
    spans[0].read()
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(UserError, match=r"real\.jsonl changed while it was read"):
        spans[-1].read()


def test_large_documents_are_whole(folder):
    large = "word é " * (1 << 20)
    content = json.dumps([{"text": "a"}, {"text": large}, {"text": "b"}], ensure_ascii=False)
    path = pack(folder / "large.json.gz", content.encode())

    assert [row.text for row in rows_of(path)] == ["a", large, "b"]
