"""Layouts x formats x archives: each file is read whole or named with the right remedy, whatever its name and order."""

import bz2
import gzip
import json
import lzma
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess import accounts, source_checks

TEXTS = [f"text number {number}" for number in range(9)]
ROWS = [{"text": text} for text in TEXTS]
LINES = "\n".join(map(json.dumps, ROWS))
OTHER = "\n".join(json.dumps({"content": text}) for text in TEXTS)
SEMICOLONS = "id;text\n" + "".join(f'{number};"{text}"\n' for number, text in enumerate(TEXTS))
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = "<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"
PACK = {
    "": bytes, ".gz": partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}  # fmt: skip


def parquet(column):
    with pa.BufferOutputStream() as file:
        pq.write_table(pa.table(column), file)
        return file.getvalue().to_pybytes()


WHOLE = [
    (ending + packed, PACK[packed](content.encode()))
    for ending, content in [
        (".jsonl", LINES), (".ndjson", LINES.replace("\n", "\r\n")), (".json", "\ufeff" + LINES),
        (".json", json.dumps(ROWS, indent=1)), (".jsonl", json.dumps(ROWS)),
        (".csv", 'text,id\n"' + '",1\n"'.join(TEXTS) + '",1\n'), (".tsv", "text\n" + "\n".join(TEXTS)),
    ]
    for packed in PACK
] + [(".parquet", parquet({"text": TEXTS}))]  # fmt: skip
NAMED = [
    (".jsonl", "".join(map(json.dumps, ROWS)), r"not one per line\. Rewrite it: jq -c \. < .*\.jsonl > NEW"),
    (".jsonl.gz", "".join(map(json.dumps, ROWS)), r"not one per line\. .*: zcat .*\.jsonl\.gz \| jq -c \. > NEW"),
    (".json", json.dumps(ROWS[0], indent=1), "not one per line"),
    (".jsonl", "\n".join(json.dumps(row, indent=1) for row in ROWS), "not one per line"),
    (".jsonl", LINES.replace("\n", "\r"), r"end with \\r alone\. Replace that: tr '\\r' '\\n' < "),
    (".csv", "text,id\ra,1\rb,2\r", r"end with \\r alone"),
    (".tsv", "text\rid\ra\r", r"end with \\r alone"),
    (".json", json.dumps({"version": 1, "data": ROWS}), r'the rows under "data"\. .*: jq -c \'\.\["data"\]\[\]\' < '),
    (".json.xz", json.dumps({"data": ROWS}, indent=1), r'the rows under "data"\. .*: xzcat .* \| jq -c '),
    (".json", json.dumps({"text": TEXTS}), r'columns, not rows\. .*: jq -c .\.\["text"\]\[\] \| {"text": \.}. < '),
    (".jsonl", "\n".join(map(json.dumps, TEXTS)), "rows are strings, not objects"),
    (".json", json.dumps(TEXTS), r"rows are strings, not objects\. .*: jq -c '\.\[\] \| "),
    (".jsonl", '{"content": "a", "tags": ["b"]}\n', "Name the field .* with --text-field"),
    (".jsonl", OTHER, r"keys: 'content'\)\. Name the field that holds the text with --text-field"),
    (".json.zst", json.dumps([{"content": text} for text in TEXTS]), "Name the field .* with --text-field"),
    (".csv", OTHER, "Name the field .* with --text-field"),
    (".parquet", parquet({"content": TEXTS}), r"its columns: content\)\. Name the field .* with --text-field"),
    (".parquet", parquet({"text": [1, 2]}), "has type int64.* Name a field that holds a string"),
    (".csv", SEMICOLONS, "separated by ';': --delimiter ';'"),
    (".csv", "id;text\n1;a\n2;b, c\n", "separated by ';': --delimiter ';'"),
    (".csv.gz", SEMICOLONS.replace(";", "\t"), r"separated by '\\t': --delimiter \$'\\t'"),
    (".tsv", SEMICOLONS, r"the ending \.csv, with --delimiter ';'"),
    (".csv", 'id,text\n1,"a\n2,b\n', "at line 2, a quotation mark is never closed"),
    (".csv", SEMICOLONS.encode("utf-16"), "It is UTF-16"),
    (".txt", "text".encode("utf-16"), "It is UTF-16"),
    (".jsonl", LINES.encode("utf-16-le"), "It is UTF-16"),
    (".jsonl.bz2", LINES.encode("utf-16"), "It is UTF-16"),
    (".txt", "caf\u00e9".encode("latin-1"), "Save it as UTF-8"),
    *((ending, LFS, "Git LFS pointer, .*`git lfs pull`") for ending in (".txt", ".jsonl", ".csv", ".json")),
    *((ending, PAGE, "a web page, .* Download the file again") for ending in (".jsonl", ".json", ".csv", ".tsv")),
    *((f".raw{end}", content, "Git LFS pointer" if content == LFS else "web page")
      for end in (".parquet", ".jsonl.gz", ".csv.zst", ".txt.xz") for content in (LFS, PAGE)),
    (".raw.jsonl.gz", LINES, r"not compressed\. Take \.gz from its name"),
    (".jsonl", PACK[".gz"](LINES.encode()), r"a \.gz file by its first bytes"),
    (".jsonl", parquet({"text": TEXTS}), r"a \.parquet file by its first bytes"),
    (".jsonl", "", r"is empty\. Remove it"),
    (".jsonl.gz", "\n\n", r"is empty\. Remove it"),
    *((ending, "", r"is empty\. Remove it") for ending in (".jsonl.gz", ".json.xz", ".csv.zst", ".tsv", ".json.bz2")),
    (".jsonl", LINES[: len(LINES) // 2] + "\n{" * 9, "has 10 bad of 14 rows: 10 rows broken JSON .* Repair it"),
]  # fmt: skip


@pytest.fixture
def good(write_jsonl):
    """So many good rows that a bad source is a small share of all."""
    return write_jsonl("in/m.jsonl", [f"good {number}" for number in range(300)])


@pytest.mark.parametrize(("ending", "content"), WHOLE)
def test_read_whole(prepare, good, ending, content):
    for first in "0z":
        good.with_name(first + ending).write_bytes(content)
    manifest = prepare(good.parent, engine="reference").manifest

    assert [manifest.sources[first + ending].documents for first in "0z"] == [len(TEXTS)] * 2
    assert manifest.documents == 300 + 2 * len(TEXTS)
    assert manifest.sources["0" + ending].text_bytes == sum(map(len, TEXTS))
    assert manifest.sources["z" + ending].num_bytes == len(content)


@pytest.mark.parametrize(
    ("ending", "content", "message"), NAMED, ids=[f"{at}{case[0]}" for at, case in enumerate(NAMED)]
)
def test_named(prepare, good, tmp_path, ending, content, message):
    content = content.encode() if isinstance(content, str) else content
    if not ending.startswith(".raw"):
        content = PACK.get("." + ending.rsplit(".", 1)[-1], bytes)(content)
    found = []
    for first in "0z":
        bad = good.with_name(first + ending)
        bad.write_bytes(content)
        with pytest.raises(UserError, match=rf"the source {bad}.*{message}") as failure:
            prepare(good.parent, output=tmp_path / first, engine="reference", max_bad_fraction=1.0)
        found.append(str(failure.value).replace(bad.name, ""))
        result = prepare(good.parent, output=tmp_path / first, engine="reference", exclude=(f"{first}.*",))
        assert result.manifest.documents == 300
        bad.unlink()
    assert found[0] == found[1]


def test_what_has_no_rows_or_whose_texts_are_left_out_is_no_error(prepare, good):
    empty = parquet({"text": pa.array([], pa.string())})
    for name, content in {"a.parquet": empty, "b.json": b"[]", "c.csv": b"text\n", "d.txt": b""}.items():
        good.with_name(name).write_bytes(content)

    assert prepare(good.parent, engine="reference").manifest.documents == 300


def test_all_bad_sources_of_a_group_are_named_at_once(prepare, good, monkeypatch):
    """Those that are not shown are not looked at."""
    for number in range(12):
        good.with_name(f"{number:02}.jsonl").write_text(OTHER)
    looked, look = [], source_checks._heads
    monkeypatch.setattr(source_checks, "_heads", lambda source: looked.append(source.name) or look(source))

    with pytest.raises(UserError) as failure:
        prepare(good.parent, engine="reference")
    assert len(looked) == 10
    lines = str(failure.value).splitlines()
    assert [f"{number:02}.jsonl gives no document" in line for number, line in enumerate(lines[:10])] == [True] * 10
    assert lines[10:] == [
        "and 2 more sources that are no better.",
        f"To go on without such a source, leave it out: --exclude {good.with_name('00.jsonl')}",
    ]  # fmt: skip


def test_what_ends_the_reading_of_a_source_is_named_with_it(prepare, good, monkeypatch):
    """By the source itself: another one's name may stand in the message."""
    good.with_name("m.jsonl.gz").write_bytes(b"no gzip")
    good.with_name("a.jsonl").write_text(OTHER)
    with pytest.raises(UserError) as failure:
        prepare(good.parent, engine="reference")
    broken, bad, remedy = str(failure.value).splitlines()
    assert "m.jsonl.gz as gzip" in broken
    assert "a.jsonl gives no document" in bad
    assert remedy.endswith(f"leave it out: --exclude {good}.gz")


def test_the_manifest_has_a_bounded_number_of_accounts(prepare, good, monkeypatch):
    monkeypatch.setattr(accounts, "_MOST_RECORDED", 2)
    for name, rows in {"a": ["", "x"], "b": ["y"], "n": ["", "", "z"], "o": ["yz"]}.items():
        good.with_name(f"{name}.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))

    sources = prepare(good.parent, engine="reference").manifest.sources
    assert list(sources) == ["a.jsonl", "3 others", "n.jsonl"]
    assert (sources["3 others"].documents, sources["n.jsonl"].skipped) == (302, {"empty": 2})


def test_accounts_are_in_the_manifest(prepare, write_jsonl):
    source = write_jsonl("a.jsonl", [*TEXTS, "", b"{", *TEXTS, b"[]"])
    account = prepare(source, engine="reference", max_bad_fraction=1.0).manifest.sources["a.jsonl"]
    assert account.skipped == {"broken JSON": 1, "empty": 1, "wrong type": 1}
    assert account.documents == 18


def test_a_source_may_have_half_of_its_rows_bad_and_no_more(prepare, tmp_path):
    source = tmp_path / "half.jsonl"
    source.write_text(f"{LINES}\n" + '{"text": 1}\n' * len(TEXTS))
    prepare(source, max_bad_fraction=1.0, output=tmp_path / "half")
    source.write_text(f"{LINES}\n" + '{"text": 1}\n' * (len(TEXTS) + 1))
    with pytest.raises(UserError, match=r"half\.jsonl"):
        prepare(source, max_bad_fraction=1.0, output=tmp_path / "more")
