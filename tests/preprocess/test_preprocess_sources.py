import errno
import os

import fsspec
import pytest

from toolkit.core.errors import UserError
from toolkit.preprocess.sources import Compression, Format, find_sources


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(found, folder):
    return [os.path.relpath(source.name, folder) for source in found if not source.is_excluded]


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
    formats = {"jsonl": Format.JSON_LINES, "ndjson": Format.JSON_LINES, "json": Format.JSON, "txt": Format.TEXT,
               "csv": Format.CSV, "tsv": Format.TSV}  # fmt: skip
    packed = {"": None, ".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".bz2": Compression.BZIP2,
              ".xz": Compression.XZ}  # fmt: skip
    expected = {f"a.{name}{end}": (formats[name], packed[end]) for name in formats for end in packed}
    expected |= {name.upper(): kinds for name, kinds in expected.items()} | {"a.Parquet": (Format.PARQUET, None)}
    touch(tmp_path, *(f"d/{name}" for name in expected), "d/a.gz", "d/a.parquet.gz", "d/jsonl", "d/a.jsonl.lz4")

    found = find_sources([str(tmp_path / "d")])

    assert {os.path.basename(source.name): (source.format, source.compression) for source in found} == expected


def test_files_of_other_kinds_are_counted_and_named(tmp_path, capsys):
    touch(tmp_path, "d/a.jsonl", "d/b.md", "d/x/c.MD", "d/x/e.tar.gz", "d/wiki_00", "d/f.parquet.gz", "d/.hidden.md")

    find_sources([str(tmp_path / "d")])

    out = capsys.readouterr().out
    assert out == (
        "Left out 1 name beginning with . or _: .hidden.md.\n"
        "Left out 5 files of other kinds: 2 .md, 1 .parquet.gz, 1 without an extension, 1 .tar.gz.\n"
    )
    find_sources([str(tmp_path / "d/a.jsonl")])
    assert capsys.readouterr().out == ""


def test_links_to_folders_are_followed(tmp_path):
    """Also in a circle, and to a folder that is read under its own name as well."""
    touch(tmp_path, "d/1.txt", "d/x/2.txt", "elsewhere/3.txt", "elsewhere/y/4.txt")
    (tmp_path / "d/a-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "d/a-link-to-x").symlink_to("x")
    (tmp_path / "d/x/up").symlink_to("..")
    (tmp_path / "elsewhere/y/out").symlink_to(tmp_path)

    found = names(find_sources([str(tmp_path / "d")]), tmp_path)

    assert found == ["d/1.txt", "d/a-link/3.txt", "d/a-link/y/4.txt", "d/x/2.txt"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_with_several_names_is_read_once(tmp_path, link, capsys):
    touch(tmp_path, "d/b.txt", "d/c.txt", "d/latest/b.txt")
    link(tmp_path / "d/b.txt", tmp_path / "d/zz.txt")
    os.symlink("b.txt", tmp_path / "d/a.txt")

    for named in (["d"], ["d/*"], ["d", "d/a.txt"], ["d/zz.txt", "d/**/*.txt"]):
        found = find_sources([str(tmp_path / name) for name in named])
        assert names(found, tmp_path) == ["d/b.txt", "d/c.txt", "d/latest/b.txt"]
        out = capsys.readouterr().out
        assert f"{tmp_path}/d/a.txt is {tmp_path}/d/b.txt" in out
        assert f"{tmp_path}/d/zz.txt is {tmp_path}/d/b.txt" in out


def test_the_snapshots_of_a_hub_cache_are_read_once(tmp_path):
    """Its names are all links, to files without an extension."""
    touch(tmp_path, "blobs/1", "blobs/2")
    for snapshot in ("old", "new"):
        (tmp_path / "snapshots" / snapshot).mkdir(parents=True)
        (tmp_path / "snapshots" / snapshot / "a.jsonl").symlink_to("../../blobs/1")
    (tmp_path / "snapshots/old/b.jsonl").symlink_to("../../blobs/2")

    assert names(find_sources([str(tmp_path)]), tmp_path) == ["snapshots/new/a.jsonl", "snapshots/old/b.jsonl"]


@pytest.mark.parametrize("named", ["d", "d/**/*.txt", "d/*/*.txt", "*/x"])
def test_an_unreadable_folder_is_an_error(tmp_path, monkeypatch, named):
    """Not even a glob passes over it. (The tests may run as root, who may read everything.)"""
    touch(tmp_path, "d/1.txt", "d/x/2.txt", "d/y/3.txt")
    scandir = os.scandir

    def refusing(path):
        if os.path.basename(os.path.normpath(path)) == "x":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)

    with pytest.raises(UserError, match=r"could not read the folder .*/d/x/?: Permission denied"):
        find_sources([str(tmp_path / named)])


@pytest.mark.parametrize("named", ["d", "d/*.txt", "**/*.txt", "d/2.txt"])
def test_a_link_to_nothing_is_an_error(tmp_path, named):
    touch(tmp_path, "d/1.txt")
    (tmp_path / "d/2.txt").symlink_to("gone.txt")

    with pytest.raises(UserError, match=r"the source .*/d/2\.txt is a broken link to gone\.txt"):
        find_sources([str(tmp_path / named)])


@pytest.mark.parametrize("named", ["d", "d/*", "d/*/*.txt", "d/**", "d/**/*.txt", "**/x/*.txt"])
def test_a_link_to_a_folder_that_is_not_mounted_is_an_error(tmp_path, named):
    touch(tmp_path, "d/x/1.txt")
    (tmp_path / "d/.y").symlink_to("/mnt/gone")
    (tmp_path / "d/y.md").symlink_to("/mnt/gone")
    if "**" in named:
        assert names(find_sources([str(tmp_path / named)]), tmp_path) == ["d/x/1.txt"]
    (tmp_path / "d/y").symlink_to("/mnt/gone")

    with pytest.raises(UserError, match=r"the source .*/d/y is a broken link to /mnt/gone"):
        find_sources([str(tmp_path / named)])


@pytest.mark.parametrize("named", ["d/**/*.txt", "d/**", "**/x/**/*.txt", "d/**/**/?.txt"])
def test_a_glob_enters_each_folder_once(tmp_path, named, monkeypatch):
    """Two links to a folder above make 2^40 paths, and Python's own glob follows each."""
    touch(tmp_path, "d/x/1.txt", "d/x/2.txt", "d/.hidden/3.txt")
    for link in ("d/up", "d/x/up", "d/x/again"):
        (tmp_path / link).symlink_to(tmp_path / "d")
    monkeypatch.chdir(tmp_path)

    assert names(find_sources([named]), tmp_path) == ["d/x/1.txt", "d/x/2.txt"]
    assert names(find_sources([str(tmp_path / named)]), tmp_path) == ["d/x/1.txt", "d/x/2.txt"]


def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    touch(tmp_path, "d/1.jsonl")
    os.mkfifo(tmp_path / "d/2.jsonl")

    assert names(find_sources([str(tmp_path / "d")]), tmp_path) == ["d/1.jsonl"]
    assert capsys.readouterr().out == "Left out 1 file of other kinds: 1 .jsonl.\n"


def test_the_output_is_no_source_even_behind_a_link(tmp_path, capsys):
    touch(tmp_path, "d/1.txt", "d/out/corpus.json", "d/out/.lock")
    (tmp_path / "d/again").symlink_to("out")

    assert names(find_sources([str(tmp_path / "d")], output=tmp_path / "d/out"), tmp_path) == ["d/1.txt"]
    assert ".lock" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wikiextractor/wiki_00", r"unknown format: .*wiki_00\. Give files that end in \.parquet"),
        ("org/data.jsonl", "no such file or directory: 'org/data.jsonl'"),
        ("./org/data", "no such file or directory: './org/data'"),
        ("squad", "organisation/name"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, monkeypatch, source, message):
    touch(tmp_path, "wikiextractor/wiki_00")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=message):
        find_sources([source])


def test_a_name_that_the_manifest_cannot_hold_is_refused(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"text": "a"}\n')

    with pytest.raises(UserError, match="Rename the file"):
        find_sources([os.fsdecode(path)])


def test_hidden_names_metadata_and_excluded_sources_are_left_out_and_said(tmp_path, capsys):
    touch(
        tmp_path, "d/a.jsonl", "d/_temporary/0/b.jsonl", "d/_c.jsonl", "d/dataset_info.json", "d/old/e.jsonl", "d/f.csv"
    )
    expected = {
        "d": ["d/a.jsonl"],
        "d/*": ["d/a.jsonl"],
        "d/_temporary/*/*": ["d/_temporary/0/b.jsonl"],
        "d/_c.jsonl": ["d/_c.jsonl"],
    }  # fmt: skip
    for named, found in expected.items():
        assert names(find_sources([str(tmp_path / named)], exclude=["old", "*.csv"]), tmp_path) == found
        if named == "d":
            out = capsys.readouterr().out.splitlines()
            assert "Left out 1 file of metadata: dataset_info.json." in out
            assert "Left out 2 names beginning with . or _: _c.jsonl, _temporary." in out
            assert "Left out by --exclude: 2 sources." in out
    with pytest.raises(UserError, match=r"--exclude \*\.jsonl leaves out all sources"):
        find_sources([str(tmp_path / "d/a.jsonl")], exclude=["*.jsonl"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train-0.jsonl", "test-0.jsonl", "dev/a.jsonl"], "2 sources of 3 named as a test or validation split"),
        (["a.jsonl", "eval.jsonl"], "1 source of 2 named"),
        (["test/a.jsonl", "test/b.jsonl"], ""),
        (["contest.jsonl", "latest.jsonl"], ""),
    ],
)
def test_splits_beside_training_text_are_said(tmp_path, capsys, files, said):
    touch(tmp_path, *(f"test/{name}" for name in files))

    find_sources([str(tmp_path)], output=tmp_path / "out")

    out = capsys.readouterr().out
    assert (said in out) if said else out == ""


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["state.json", "dataset_info.json", "data-00000-of-00001.arrow"], r"load_from_disk\('.*/d'\)\.to_parquet"),
        (["index.json", "shard.00000.mds"], "MosaicML Streaming"),
        (["corpus.json", "tokenizer/tokenizer.json"], "It holds tokens: train on it"),
        (["shard-00000.bin", "shard-00000.idx"], "It holds tokens: train on it"),
        (["corpus.json", "shard-00000.bin", "shard-00000.idx"], "It holds tokens: train on it"),
    ],
)
def test_data_in_other_forms_is_named_with_what_to_do(tmp_path, files, message):
    touch(tmp_path, "a.jsonl", *(f"d/{name}" for name in files))

    with pytest.raises(UserError, match=rf"no text in {tmp_path}/d: .*{message}"):
        find_sources([str(tmp_path)])
    assert names(find_sources([str(tmp_path)], exclude=["d"]), tmp_path) == ["a.jsonl"]
    store = fsspec.filesystem("memory")
    for name in files:
        store.pipe_file(f"/bucket/d/{name}", b"{}")
    with pytest.raises(UserError, match=rf"no text in memory://bucket/d: .*{message.replace('.*', 'memory://bucket')}"):
        find_sources(["memory://bucket/"])
    store.store.clear()


def test_a_stray_file_of_data_beside_text_is_counted(tmp_path, capsys):
    touch(tmp_path, "d/a.jsonl", "d/a.idx", "d/b.arrow", "d/c.mds.zstd")

    assert names(find_sources([str(tmp_path / "d")]), tmp_path) == ["d/a.jsonl"]
    assert capsys.readouterr().out == "Left out 3 files of other kinds: 1 .idx, 1 .arrow, 1 .zstd.\n"


@pytest.mark.parametrize("named", ["d", "d/*.json", "d/out", "d/out/b.txt"])
def test_a_place_without_text_is_named(tmp_path, named):
    touch(tmp_path, "d/state.json", "d/out/b.txt", "d/out/.lock")

    with pytest.raises(UserError, match=rf"no (text in|source) .*{named.replace('*', '.')}|has no supported files"):
        find_sources([str(tmp_path / named)], output=tmp_path / "d/out")
