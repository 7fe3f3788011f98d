"""Data sets on the hub, against a server of our own that speaks its protocol; the client is the real one."""

import os
import textwrap
import time

import pyarrow.parquet as pq
import pytest

from tests.support.apart import run_apart
from tests.support.fineweb import FINEWEB, FINEWEB_CARD, write_fineweb
from tests.support.hub_server import HubServer
from tests.support.text import sample_documents
from tokenization.hub import with_retries
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import iterate_spans, parquet, ranges
from toolkit.preprocess.readers.hub_file import HubFile
from toolkit.preprocess.settings import ReadingSettings
from toolkit.preprocess.sources import find_sources

SEVERAL = """---
configs:
- {config_name: one, data_files: en/*.parquet}
- {config_name: two, data_files: [en/a.parquet, fr/**]}
- {config_name: three, data_dir: fr}
- config_name: four
  data_files: [{split: test, path: en/b.parquet}, {split: train, path: ["fr/?.parquet", "fr/x/[ab].parquet"]}]
---
"""


def write_sample(path, seed, *, count=400, group_rows=50, padding=0):
    texts = sample_documents(count, seed=seed)
    write_fineweb(path, texts, group_rows=group_rows, padding=padding)
    return texts


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub" / "datasets" / FINEWEB
    paths = ["data/CC-MAIN-2013-20/train-00000-of-00002", "data/CC-MAIN-2013-20/train-00001-of-00002",
             "data/CC-MAIN-2014-10/train-00000-of-00001", "sample/10BT/000_00000"]  # fmt: skip
    for seed, path in enumerate(paths):
        write_sample(folder / f"{path}.parquet", seed)
    (folder / "README.md").write_text(FINEWEB_CARD)
    with HubServer(tmp_path / "hub", page_size=2) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_ours")
        monkeypatch.chdir(tmp_path)
        yield server


def repository(hub, name, *, card=None, files=()):
    folder = hub.root / "datasets" / name
    for seed, path in enumerate(files):
        write_sample(folder / path, seed, count=3)
    folder.mkdir(parents=True, exist_ok=True)
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


def found(*named, subset=None):
    return [source.name.removeprefix("hub://") for source in find_sources(named, subset=subset)]


def read(source):
    return [row for span in spans(source) for row in span.read()]


def spans(source):
    return iterate_spans(source, ReadingSettings())


@pytest.mark.parametrize(
    ("subset", "files"),
    [
        ("sample-10BT", ["sample/10BT/000_00000"]),
        ("CC-MAIN-2013-20", [f"data/CC-MAIN-2013-20/train-0000{number}-of-00002" for number in (0, 1)]),
        ("default", ["data/CC-MAIN-2013-20/train-00000-of-00002", "data/CC-MAIN-2013-20/train-00001-of-00002",
                     "data/CC-MAIN-2014-10/train-00000-of-00001"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["fineweb-edu", FINEWEB, f"datasets/{FINEWEB}"])
def test_a_subset_is_a_configuration_of_the_readme(hub, name, subset, files):
    assert found(name, subset=subset) == [f"{FINEWEB}/{file}.parquet" for file in files]


def test_configurations_are_those_of_the_datasets_library(hub, tmp_path):
    files = ["en/a.parquet", "en/b.parquet", "fr/a.parquet", "fr/x/a.parquet", "fr/x/c.parquet", "fr/aa.parquet"]
    repository(hub, "org/several", card=SEVERAL, files=files)
    code = """
        import datasets
        for name in ("one", "two", "three", "four"):
            builder = datasets.load_dataset_builder("org/several", name)
            print(name, *sorted(file.rsplit("@", 1)[1].split("/", 1)[1] for file in builder.config.data_files["train"]))
        """
    finished = child(hub, tmp_path, code, HF_DATASETS_CACHE=str(tmp_path / "cache"))

    expected = dict(line.split(" ", 1) for line in finished.stdout.splitlines())
    assert len(expected) == 4, finished.stderr
    for name, files in expected.items():
        ours = found("org/several", subset=name)
        assert [path.removeprefix("org/several/") for path in ours] == files.split(" ")


def test_sources_here_and_on_the_hub_are_in_one_order(hub, tmp_path):
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "here").mkdir()
    (tmp_path / "org" / "here" / "a.txt").write_text("a")

    assert found("fineweb-edu", "b.txt", "org/here", subset="sample-10BT") == [
        str(tmp_path / "b.txt"), str(tmp_path / "org/here/a.txt"), f"{FINEWEB}/sample/10BT/000_00000.parquet"
    ]  # fmt: skip


def test_without_a_readme_folders_are_configurations(hub):
    files = [
        "data/A/train-0.parquet",
        "data/A/test-0.parquet",
        "data/B/0.parquet",
        "sample/10BT/0.parquet",
        "x.parquet",
    ]
    repository(hub, "org/plain", files=files)

    def inside(subset):
        return [path.removeprefix("org/plain/") for path in found("org/plain", subset=subset)]

    assert inside(None) == inside("default") == inside("data") == ["data/A/train-0.parquet", "data/B/0.parquet"]
    assert inside("sample-10BT") == inside("10BT") == inside("sample/10BT") == ["sample/10BT/0.parquet"]
    assert inside("A") == ["data/A/train-0.parquet"]
    assert inside("A:test") == ["data/A/test-0.parquet"]


def test_files_of_other_kinds_are_counted(hub, capsys):
    several = repository(hub, "org/several", card=SEVERAL, files=["fr/a.parquet", "en/b.parquet"])
    plain = repository(hub, "org/plain", files=["a.parquet"])
    for name in ("fr/c.jsonl", "fr/x/d.jsonl.gz", "en/e.jsonl"):
        (several / name).parent.mkdir(parents=True, exist_ok=True)
        (several / name).write_text("{}")
    (plain / "b.jsonl").write_text("{}")
    (plain / "LICENSE").write_text("free")

    assert found("org/several", subset="three") == ["org/several/fr/a.parquet"]
    said = "Left out 2 files of other kinds in the data set org/several: 1 .jsonl, 1 .jsonl.gz.\n"
    assert capsys.readouterr().out == said
    assert found("org/plain") == ["org/plain/a.parquet"]
    assert capsys.readouterr().out == "Left out 1 file of other kinds in the data set org/plain: 1 .jsonl.\n"


def test_another_revision_can_be_named(hub):
    repository(hub, "org/text", files=["a.parquet"])
    repository(hub, "org/text@refs%2Fconvert%2Fparquet", files=["default/train/0000.parquet"])

    assert found("org/text@refs/convert/parquet") == ["org/text/default/train/0000.parquet"]
    assert found(f"org/text@{hub.commit_of('datasets/org/text')}") == ["org/text/a.parquet"]


ERRORS = {
    "several": (FINEWEB, None, "several configurations. Name one with --subset: default, sample-10BT, CC-MAIN-2013-20"),
    "a slip": (FINEWEB, "sample-10bt", "no configuration 'sample-10bt'. Did you mean sample-10BT? It has: default, "),
    "no split": ("org/split", "c:train", "no split 'train'. Name one of its splits with --subset: c:test, c:dev"),
    "no train": ("org/split", None, "no split 'train'. Name one of its splits"),
    "no parquet": ("org/lines", None, "has no Parquet files (found: 2 .jsonl.gz, 1 .md). The hub keeps a Parquet"),
    "missing": ("org/none", None, "the data set org/none: http://"),
    "no revision": ("org/lines@v2", None, "not this revision"),
    "bad yaml": ("org/yaml", None, "invalid README of the data set org/yaml: "),
    "listed": ("org/listed", None, "it is gated, and the token in use has no access. Accept its terms on http://127"),
    "gated": ("org/gated", None, "it is gated, and the token in use has no access. Accept its terms on http://127"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_the_hub_does_not_give_is_said(hub, case):
    splits = "{config_name: c, data_files: [{split: test, path: t}, {split: dev, path: d}]}"
    repository(hub, "org/split", card=f"---\nconfigs:\n- {splits}\n---\n")
    repository(hub, "org/yaml", card="---\nconfigs:\n- {config_name: c, data_files: 5}\n---\n")
    lines = repository(hub, "org/lines", card="# Lines\n")
    for number in range(2):
        (lines / f"{number}.jsonl.gz").write_text("")
    repository(hub, "org/gated", files=["a.parquet"])
    hub.lock("datasets/org/gated", "hf_theirs")
    repository(hub, "org/listed", files=["a.parquet"])
    hub.lock("datasets/org/listed", "hf_theirs", is_listed=True)
    name, subset, message = ERRORS[case]

    with pytest.raises(UserError) as failure:
        find_sources([name], subset=subset)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "has no repository of this name"), (403, "it is gated"), (418, "answered 418 I'm a Teapot")],
)
def test_a_bare_refusal_is_understood_too(hub, status, message):
    hub.break_next("/api/datasets", status=status)

    with pytest.raises(UserError, match=message):
        find_sources(["fineweb-edu"], subset="default")


def test_a_token_opens_a_gated_data_set_and_stays_on_the_hub(hub):
    repository(hub, "org/gated", files=["a.parquet"])
    hub.lock("datasets/org/gated", "hf_ours")

    (source,) = find_sources(["org/gated"])
    assert len(read(source)) == 3
    assert {request.token for request in hub.requests if request.host == "hub"} == {"hf_ours"}
    assert {request.token for request in hub.requests if request.host == "cdn"} == {""}


@pytest.mark.parametrize("most_group_bytes", [8 << 20, 0], ids=["by group", "streamed"])
def test_rows_are_those_of_the_file(hub, monkeypatch, most_group_bytes):
    monkeypatch.setattr(parquet, "_MOST_GROUP_BYTES", most_group_bytes)
    monkeypatch.setattr(parquet, "_SPAN_BYTES", 40_000)
    monkeypatch.setattr(ranges, "_BLOCK_BYTES", 7_000)
    monkeypatch.setattr(ranges, "_SMALL_GAP_BYTES", 0)
    source = find_sources(["fineweb-edu"], subset="sample-10BT")[0]
    texts = pq.read_table(hub.root / "datasets" / source.name.removeprefix("hub://")).column("text").to_pylist()

    assert len([*spans(source)]) >= 3
    assert [row.text for row in read(source)] == texts


def test_one_commit_is_read_and_the_version_is_that_of_the_content(hub):
    folder = hub.root / "datasets" / FINEWEB
    before = find_sources(["fineweb-edu"], subset="sample-10BT")[0]
    (folder / "README.md").write_text(FINEWEB_CARD + "\nMore words.\n")
    described = find_sources(["fineweb-edu"], subset="sample-10BT")[0]
    write_sample(folder / "sample/10BT/000_00000.parquet", 9)
    changed = find_sources(["fineweb-edu"], subset="sample-10BT")[0]
    read(changed)

    assert (before.version, before.num_bytes) == (described.version, described.num_bytes)
    assert before.revision != described.revision
    assert changed.version != before.version
    assert all(changed.revision in request.path for request in hub.requests[-3:] if request.host == "hub")
    with pytest.raises(UserError, match=r"source hub://.*000_00000\.parquet: .* not this revision"):
        read(before)


def test_a_limited_read_takes_a_small_part_of_a_large_file(hub):
    path = "data/A/train-00000-of-00001.parquet"
    texts = write_sample(hub.root / "datasets/org/large" / path, 1, count=4000, group_rows=250, padding=4000)
    (source,) = find_sources(["org/large"])
    before = hub.bytes_sent()
    reading = spans(source)
    rows = next(reading).read()
    reading.close()

    assert source.num_bytes > 8e6
    assert [row.text for row in rows[:1000]] == texts[:1000]
    text_bytes = sum(len(text.encode()) for text in texts)
    # All of the text fits one span here; the other columns are not fetched.
    assert hub.bytes_sent() - before < text_bytes < 0.3 * source.num_bytes


FAULTS = {
    "dropped in the body": [{"drop_after": 1000}],
    "dropped before the body": [{"drop_after": 0}],
    "server in trouble": [{"status": 503}, {"status": 500}],
    "too many requests": [{"status": 429, "retry_after": 1}],
}


@pytest.mark.parametrize("host", ["cdn /datasets", "hub /datasets"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_waited_for(hub, fault, host):
    (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
    expected = read(source)
    for given in FAULTS[fault]:
        hub.break_next(host, **given)
    begin = time.monotonic()

    assert read(source) == expected
    assert time.monotonic() - begin > (1 if "retry_after" in FAULTS[fault][0] else 0.4)


def test_listing_waits_too(hub, monkeypatch):
    waited = []
    monkeypatch.setitem(with_retries.__kwdefaults__, "sleep", waited.append)
    hub.break_next("/api/datasets", status=503)
    hub.break_next("README.md", status=500)
    hub.break_next("/tree/", drop_after=5)

    assert found("fineweb-edu", subset="sample-10BT") == [f"{FINEWEB}/sample/10BT/000_00000.parquet"]
    # The client asks for the tree again itself.
    assert waited == [0.5, 0.5]


def test_a_long_wait_is_announced(hub, monkeypatch, capsys):
    monkeypatch.setattr("tokenization.hub._REPORTED_SECONDS", 1)
    (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
    hub.break_next("cdn", status=429, retry_after=1)
    HubFile(source, waits=(0,)).fetch(0, 10)

    assert capsys.readouterr().out == f"{hub.endpoint} answered 429 Too Many Requests; retrying in 1 s\n"


def test_a_dropped_connection_goes_on_behind_the_last_byte(hub):
    (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
    content = (hub.root / "datasets" / source.name.removeprefix("hub://")).read_bytes()
    hub.break_next("cdn", drop_after=1000, times=2)

    assert HubFile(source, waits=(0, 0)).fetch(10, 9000) == content[10:9000]
    assert [request.range for request in hub.requests[-3:]] == ["bytes=10-8999", "bytes=1010-8999", "bytes=2010-8999"]


def test_addresses_that_expire_are_asked_for_again(hub):
    (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
    content = (hub.root / "datasets" / source.name.removeprefix("hub://")).read_bytes()
    file = HubFile(source, waits=())
    file.fetch(0, 10)
    hub.expire_addresses()

    assert file.fetch(10, 20) == content[10:20]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 503, "times": 9}, "answered 503 Service Unavailable. Try again later"),
        ({"drop_after": 10, "times": 9}, "failed (peer closed connection"),
        ({"status": 404, "times": 9}, "refuses access"),
        ({"ignore_range": True, "times": 9}, "in parts: "),
    ],
)
def test_what_does_not_pass_names_the_file(hub, fault, message):
    (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
    hub.break_next("cdn", **fault)

    with pytest.raises(UserError, match=r"download the source hub://.*/000_00000\.parquet") as failure:
        HubFile(source, waits=(0, 0)).fetch(0, 9000)
    assert message in str(failure.value)


def child(hub, folder, code, **environment):
    """Run code in a process that starts with these variables: the client reads some of them only once."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    given = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "home"), **environment}
    return run_apart("-c", textwrap.dedent(code), environment=plain | given)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set. Unset it, or give files"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the connection to http://127.0.0.1:9 failed"),
        ({}, "it is gated, and no token is set. Accept its terms"),
        ({"HF_TOKEN": "hf_wrong"}, "it is gated, and the token in use has no access"),
    ],
)
def test_the_command_leaves_with_2_and_one_message(hub, tmp_path, environment, message):
    hub.lock(f"datasets/{FINEWEB}", "hf_theirs")
    code = """
        from tokenization.hub import with_retries
        from toolkit.cli.exit_codes import guarded
        from toolkit.preprocess.sources import find_sources
        with_retries.__kwdefaults__["sleep"] = lambda seconds: None
        raise SystemExit(guarded(lambda: find_sources(["fineweb-edu"], subset="default")))
        """
    finished = child(hub, tmp_path, code, **environment)

    assert finished.returncode == 2
    assert message in finished.stderr
    assert finished.stderr.count("\n") == 1, finished.stderr


def test_a_server_that_falls_silent_is_asked_again(hub, tmp_path):
    hub.break_next("cdn", delay=3)
    code = """
        from toolkit.preprocess.sources import find_sources
        from toolkit.preprocess.readers import iterate_spans
        from toolkit.preprocess.settings import ReadingSettings
        (source,) = find_sources(["fineweb-edu"], subset="sample-10BT")
        spans = iterate_spans(source, ReadingSettings())
        print(sum(len(span.read()) for span in spans))
        """
    finished = child(hub, tmp_path, code, HF_HUB_DOWNLOAD_TIMEOUT="1")

    # A busy machine may let it wait for other answers too, which is told.
    assert finished.stdout.splitlines()[-1:] == ["400"], finished.stderr


def test_a_corpus_from_the_hub_is_the_one_from_the_files(hub, tmp_path, prepare):
    local = hub.root / "datasets" / FINEWEB / "data"
    prepare("fineweb-edu", subset="default", output=tmp_path / "remote", limit_documents=900, engine="reference")
    prepare(local, output=tmp_path / "local", limit_documents=900, engine="reference")

    for name in ("shard-00000.bin", "shard-00000.idx"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
