import os

import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.sources import Compression, Format, find_sources


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(found, folder):
    return [os.path.relpath(source.name, folder) for source in found]


def test_order_is_bytewise_by_absolute_path_over_all_sources(tmp_path):
    touch(tmp_path, "b/1.txt", "b/10.jsonl", "b/2.parquet", "a/é.txt", "a/z.txt", "B.txt", "a.txt")

    found = find_sources([str(tmp_path / "b"), str(tmp_path / "a.txt"), str(tmp_path / "B.txt"), str(tmp_path / "a")])

    assert names(found, tmp_path) == ["B.txt", "a.txt", "a/z.txt", "a/é.txt", "b/1.txt", "b/10.jsonl", "b/2.parquet"]


def test_a_file_named_twice_is_read_once(tmp_path, monkeypatch):
    touch(tmp_path, "a/1.txt", "a/2.txt")
    monkeypatch.chdir(tmp_path)

    assert names(find_sources(["a", "a/1.txt", "./a/*.txt", str(tmp_path / "a")]), tmp_path) == ["a/1.txt", "a/2.txt"]


def test_globs_reach_into_folders(tmp_path):
    touch(tmp_path, "a/1.jsonl", "a/b/2.jsonl", "a/b/3.txt")

    assert names(find_sources([str(tmp_path / "**/*.jsonl")]), tmp_path) == ["a/1.jsonl", "a/b/2.jsonl"]
    assert len(find_sources([str(tmp_path / "*")])) == 3


def test_a_name_with_brackets_is_a_name_first(tmp_path):
    touch(tmp_path, "a[1].txt", "a1.txt")

    assert names(find_sources([str(tmp_path / "a[1].txt")]), tmp_path) == ["a[1].txt"]
    assert names(find_sources([str(tmp_path / "a?1?.txt")]), tmp_path) == ["a[1].txt"]


def test_a_folder_stands_for_its_readable_files_but_hidden_ones(tmp_path):
    touch(tmp_path, "d/1.txt", "d/README.md", "d/.cache/2.txt", "d/.3.txt")

    assert names(find_sources([str(tmp_path / "d")]), tmp_path) == ["d/1.txt"]


def test_every_format_is_found_and_told_by_its_ending(tmp_path):
    endings = ["jsonl", "json", "txt", "jsonl.gz", "json.gz", "txt.gz", "jsonl.zst", "json.zst", "txt.zst", "parquet"]
    touch(tmp_path, *(f"d/a.{ending}" for ending in endings), "d/a.csv.gz", "d/a.gz", "d/a.parquet.gz")

    found = {os.path.basename(source.name): source for source in find_sources([str(tmp_path / "d")])}

    assert set(found) == {f"a.{ending}" for ending in endings}
    assert {name: source.format for name, source in found.items() if ".json." in name or name == "a.json"} == {
        "a.json": Format.JSON, "a.json.gz": Format.JSON, "a.json.zst": Format.JSON
    }  # fmt: skip
    assert [found[f"a.txt{packed}"].compression for packed in ("", ".gz", ".zst")] == [
        None, Compression.GZIP, Compression.ZSTD
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "There is no file or folder"),
        ("nowhere/*.txt", "matches no file"),
        ("d/a.csv", r"format of .*a\.csv is unknown"),
        ("empty", r"empty is empty\. Give one with files that end in \.parquet, \.jsonl"),
        ("wikiextractor/wiki_00", r"format of .*wiki_00 is unknown. Give files that end in \.parquet"),
        ("org/data.jsonl", "There is no file or folder 'org/data.jsonl'"),
        ("./org/data", "There is no file or folder './org/data'"),
        ("squad", "organisation/name"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, monkeypatch, source, message):
    touch(tmp_path, "d/a.csv", "wikiextractor/wiki_00")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=message):
        find_sources([source])


def test_a_subset_is_one_of_a_data_set_on_the_hub(tmp_path):
    touch(tmp_path, "a.txt")

    with pytest.raises(UserError, match=r"--subset en names a part of a data set on the hub, and none .*a\.txt"):
        find_sources([str(tmp_path / "a.txt")], subset="en")


def test_a_name_that_the_manifest_cannot_hold_is_refused(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"text": "a"}\n')

    with pytest.raises(UserError, match="Rename the file"):
        find_sources([os.fsdecode(path)])
