"""Sources in object storage: read in ranges, they give the rows of local ones; and what is refused."""

import bz2
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import iterate_spans, lines, parquet, ranges
from toolkit.preprocess.settings import ReadingSettings
from toolkit.preprocess.sources import Source, find_sources
from toolkit.preprocess.sources.source import Format
from toolkit.preprocess.summary import PreprocessResult
from toolkit.preprocess.writer.groups import recorded_names
from toolkit.storage import objects, put

TEXTS = [f"text {number} " + "word " * (number % 50) for number in range(400)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sources of each kind, here and at memory://bucket/texts; blocks and spans are so small that there are many."""
    for module, name in ((ranges, "_BLOCK_BYTES"), (lines, "_SPAN_BYTES"), (parquet, "_SPAN_BYTES")):
        monkeypatch.setattr(module, name, 3_000)
    monkeypatch.setattr(objects, "WAITS_SECONDS", ())
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (folder / "plain.jsonl").write_bytes(rows)
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(rows))
    (folder / "deep" / "packed.jsonl.bz2").write_bytes(bz2.compress(rows))
    (folder / "array.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    (folder / "table.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS))
    (folder / "whole.txt").write_text("\n".join(TEXTS))
    (folder / "other.pdf").write_text("no text")
    pq.write_table(pa.table({"text": TEXTS, "more": TEXTS}), folder / "rows.parquet", row_group_size=50)
    store = fsspec.filesystem("memory")
    store.store.clear()
    for path in folder.rglob("*.*"):
        put(path, f"memory://bucket/texts/{path.relative_to(folder)}")
    yield folder
    store.store.clear()


def _texts(source: Source) -> list[str]:
    spans = list(iterate_spans(source, ReadingSettings()))
    return [row.text for span in spans for row in span.read()]


def test_every_format_gives_the_rows_of_a_local_file(folder: Path) -> None:
    local, remote = find_sources([str(folder)]), find_sources(["memory://bucket/texts/"])
    assert [source.name.replace("memory://bucket/texts", str(folder)) for source in remote] == [
        source.name for source in local
    ]
    for here, there in zip(local, remote, strict=True):
        assert (there.format, there.num_bytes) == (here.format, here.num_bytes)
        assert _texts(there) == _texts(here), there.name


def test_one_file_and_globs(folder: Path) -> None:
    names = find_sources(
        ["memory://bucket/texts/**/*.bz2", "memory://bucket/texts/*.csv", "memory://bucket/texts/rows.parquet"]
    )
    assert [source.name.removeprefix("memory://bucket/texts/") for source in names] == [
        *("deep/packed.jsonl.bz2", "rows.parquet", "table.csv"),
    ]


def test_only_the_text_column_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched, whole = [], fsspec.filesystem("memory").cat_file

    def counted(self: object, path: str, start: int = 0, end: int = 0, **_: object) -> bytes:
        fetched.append(end - start)
        content: bytes = whole(path, start=start, end=end)
        return content

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", counted)
    monkeypatch.setattr(ranges, "_SMALL_GAP_BYTES", 0)
    [source] = find_sources(["memory://bucket/texts/rows.parquet"])
    assert _texts(source) == TEXTS
    # The first is the end of the file, with the footer.
    assert sum(fetched[1:]) < 0.6 * source.num_bytes


def test_what_is_not_there(folder: Path) -> None:
    with pytest.raises(UserError, match=r"memory://bucket/nothing is empty"):
        find_sources(["memory://bucket/nothing"])
    with pytest.raises(UserError, match=r"texts/other\.pdf has no supported files, but 1 file"):
        find_sources(["memory://bucket/texts/other.pdf"])


@pytest.mark.parametrize("name", ["plain.jsonl", "rows.parquet"])
def test_a_source_that_changes_is_named(folder: Path, name: str) -> None:
    [source] = find_sources([f"memory://bucket/texts/{name}"])
    put(folder / name, source.name)
    with pytest.raises(UserError, match=rf"the source memory://bucket/texts/{name} changed while it was read"):
        _texts(source)


@pytest.mark.parametrize(
    ("names", "recorded"),
    [
        (["/a/b/c/x", "/a/b/d/y"], ["c/x", "d/y"]),
        (["/a/x", "/ab/x"], ["a/x", "ab/x"]),
        (["s3://b/k/x", "s3://b/k/y"], ["x", "y"]),
        (["s3://b/k/x", "s3://c/k/y"], ["b/k/x", "c/k/y"]),
        (["/a/x", "s3://b/y"], ["/a/x", "s3://b/y"]),
    ],
)
def test_names_in_the_corpus_do_not_depend_on_the_place(names: list[str], recorded: list[str]) -> None:
    assert recorded_names([Source(name, Format.TEXT, 1, "") for name in names]) == recorded


def test_keys_that_differ_in_a_slash_or_hold_a_bracket_are_read_each() -> None:
    keys = ["d//same.jsonl", "d/same.jsonl", "d/x[1].jsonl"]
    for number, key in enumerate(keys):
        fsspec.filesystem("memory").pipe_file("/odd/" + key, json.dumps({"text": f"{number}"}).encode())
    found = find_sources(["memory://odd/d"])

    assert [source.name for source in found] == [f"memory://odd/{key}" for key in keys]
    assert [text for source in found for text in _texts(source)] == ["0", "1", "2"]
    for key in keys:
        assert [source.name for source in find_sources([f"memory://odd/{key}"])] == [f"memory://odd/{key}"]


def test_an_object_replaced_by_one_of_equal_size_is_another_source(
    prepare: Callable[..., PreprocessResult],
) -> None:
    for text in ("first", "other"):
        fsspec.filesystem("memory").pipe_file("/again/a.jsonl", json.dumps({"text": text}).encode())
        if text == "first":
            prepare("memory://again/a.jsonl", engine="reference")
    with pytest.raises(UserError, match="a finished corpus of 1 document from other sources"):
        prepare("memory://again/a.jsonl", engine="reference")
