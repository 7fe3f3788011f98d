import os

import pytest

from toolkit.core.errors import NotAvailableError, UserError
from toolkit.preprocess.sources import find_sources


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(found, folder):
    return [os.path.relpath(source.path, folder) for source in found]


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


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.txt.gz"])
def test_formats_to_come_are_refused_not_left_out(tmp_path, name):
    touch(tmp_path, f"d/{name}", "d/1.txt")

    for source in (tmp_path / "d" / name, tmp_path / "d"):
        with pytest.raises(NotAvailableError, match="not available yet") as failure:
            find_sources([str(source)])
        assert name in str(failure.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "There is no file or folder"),
        ("nowhere/*.txt", "matches no file"),
        ("d/a.csv", r"format of .*a\.csv is unknown"),
        ("empty", r"holds no \.jsonl, \.parquet, \.txt file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, monkeypatch, source, message):
    touch(tmp_path, "d/a.csv")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=message):
        find_sources([source])


def test_the_hub_is_not_available_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotAvailableError, match="fineweb-edu"):
        find_sources(["fineweb-edu"])
