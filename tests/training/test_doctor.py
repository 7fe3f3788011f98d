"""`toolkit doctor`: each fault is named in the row of its check; and on two ranks, one of which has several."""

import copy
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.launches import PRETRAIN, free_port, outputs, start
from tests.support.runs import RunCase, write_run
from toolkit.core.errors import SettingsError
from toolkit.core.files import hash_folder
from toolkit.engine import meeting
from toolkit.launching.doctor import look_at_machine, try_steps
from toolkit.launching.findings import Facts, findings
from toolkit.parallel.launcher import Launched

_PACE = r"\n([\d,]+) tokens/s: about ([\d.e-]+) hours for the 18 steps left"
# Of each step, most of it tokens: 8 rows of 64.
_TOKENS = 512
_VALUES = {
    "packages": {"toolkit": "0.1.0", "torch": "2.13.0", "deepspeed": "0.19.8"},
    "device": {"name": "NVIDIA H100 80GB HBM3"},
    "run": {"run.dir": "/nfs/run", "settings": "5e77"},
    "data": {"data.train": "c0", "data.train shard-00000.bin": "aa", "data.train shard-00001.bin": "ab"},
    "tokenizer": {"data.train": "f1"},
    "shared folder": {"a file of rank 0": "seen, and locked"},
}


def _ranks():
    whole = [Facts("ann" if rank < 2 else "bob", copy.deepcopy(_VALUES), clock=1e9) for rank in range(4)]
    for rank in whole:
        rank.free, rank.needed, rank.speed = 9e9, 5e9, (0.1, 0.05)
    # The second rank of a machine does not read the shards again.
    whole[1].same["data"], whole[3].same["data"] = {"data.train": "c0"}, {"data.train": "c0"}
    return whole


def _wrong(ranks, device="cuda"):
    return {row.check: row for row in findings(ranks, device=device) if row.remedy}


def test_nothing_is_wrong_with_equal_ranks():
    rows = {row.check: row for row in findings(_ranks(), device="cuda")}
    assert list(rows) == ["start", *_VALUES, "clock", "disk", "speed", "all-reduce"]
    assert [row.remedy for row in rows.values()] == [""] * 11
    assert rows["start"].found == "4 ranks on 2 machines"
    assert rows["disk"][1:3] == ("5.0 GB for checkpoints", "9.0 GB")
    left = _ranks()
    left[0].left = "; 2 removed checkpoints not deleted yet"
    assert next(row.found for row in findings(left, device="cuda") if row.check == "disk") == f"9.0 GB{left[0].left}"
    # 2 (n - 1) / n times its bytes.
    assert rows["all-reduce"].found == "2,013 MB/s"


def _value(check, name, value):
    return lambda rank: rank.same[check].update({name: value})


def _fact(**facts):
    return lambda rank: vars(rank).update(facts)


@pytest.mark.parametrize(
    ("plant", "check", "found", "remedy"),
    [
        (_value("packages", "toolkit", "0.0.9"), "packages", "has 0.1.0, rank 2 on bob has 0.0.9", "Install"),
        (_value("packages", "torch", "2.12.1"), "packages", "torch: rank 0 on ann has 2.13.0, rank 2", "Install"),
        (_value("packages", "deepspeed", "not installed"), "packages", "rank 2 on bob has not installed", "Install"),
        (_value("data", "data.train", "c1"), "data", "data.train: rank 0 on ann has c0, rank 2 on bob", "Copy"),
        (_value("data", "data.train shard-00001.bin", "x"), "data", "shard-00001.bin: rank 0 on ann has ab", "verify"),
        (_value("tokenizer", "data.train", "f2"), "tokenizer", "rank 2 on bob has f2", "tokenizer/"),
        (_value("shared folder", "a file of rank 0", "not seen"), "shared folder", "bob has not seen", "Set run.dir"),
        (_value("run", "settings", "7007"), "run", "rank 2 on bob has 7007", "the same run file"),
        (_value("device", "name", "NVIDIA A40"), "device", "rank 2 on bob has NVIDIA A40", "the same devices"),
        (_fact(clock=1e9 - 180.4), "clock", "rank 2 on bob: -180 s", "NTP"),
        (_fact(free=4.9e9), "disk", "rank 2 on bob: 4.9 GB", "checkpoint.keep"),
        (_fact(error="/x is missing"), "start", "rank 2 on bob: /x is missing", "on its machine"),
        (_fact(speed=(0.16, 0.05)), "speed", "rank 2 on bob: 160.0 ms", "what else runs there"),
    ],
)
def test_a_planted_fault_is_named(plant, check, found, remedy):
    ranks = _ranks()
    plant(ranks[2])
    (row,) = _wrong(ranks).values()
    assert row.check == check
    assert found in row.found
    assert remedy in row.remedy


def test_a_slow_network_is_named_beside_what_is_expected_of_it():
    ranks = _ranks()
    for one in ranks:
        one.speed = (0.1, 1.0)
    assert _wrong(ranks, "cpu") == {}
    assert _wrong(ranks)["all-reduce"][1:3] == ("1,000 MB/s", "101 MB/s")
    assert findings(ranks[:1], device="cuda")[-1][2:] == ("no other rank", "")


def test_the_rate_of_a_sum_is_that_of_the_rank_that_came_last():
    """Of four ranks each sends 1.5 times what is summed; the others' times are of waiting for it."""
    ranks = _ranks()
    for rank in ranks[1:]:
        rank.speed = (0.1, 5.0)
    (row,) = [row for row in findings(ranks, device="cpu") if row.check == "all-reduce"]
    assert row.found == f"{1.5 * meeting.ALL_REDUCE_BYTES / 0.05 / 1e6:,.0f} MB/s"


def test_what_the_first_rank_could_not_look_at_is_in_no_row():
    ranks = [Facts("ann", {"packages": {"torch": "2.13.0"}, "data": {}}, error="no corpus") for _ in range(2)]
    rows = findings(ranks, device="cpu")
    assert [row.check for row in rows] == ["start", "packages", "clock", "speed", "all-reduce"]
    assert all(row.found for row in rows)


def test_a_rank_that_reads_no_shards_is_compared_in_the_rest():
    ranks = _ranks()
    ranks[3].same["data"]["data.train"] = "c1"
    assert _wrong(ranks)["data"].found == "data.train: rank 0 on ann has c0, rank 3 on bob has c1"


def _flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "check", "named"),
    [
        ("shard-00000.bin", "data", "data.train shard-00000.bin: rank 0 on ann has"),
        ("tokenizer/tokenizer_config.json", "tokenizer", "data.train: rank 0 on ann has"),
    ],
)
def test_another_file_of_the_same_size_is_seen(tmp_path, monkeypatch, file, check, named):
    monkeypatch.setenv("LOCAL_RANK", "0")
    run_file, ranks = str(write_run(tmp_path)), [Facts("ann"), Facts("bob")]
    look_at_machine(run_file, [], ranks[0])
    _flip_a_byte(tmp_path / "corpus" / file)
    assert look_at_machine(run_file, [], ranks[1]) == tmp_path
    (row,) = _wrong(ranks, "cpu").values()
    assert row.check == check
    assert row.found.startswith(named)


def _launched(monkeypatch, port):
    """Threads are ranks of three, of which no process is the second."""
    monkeypatch.setenv("MASTER_PORT", str(port))
    places = threading.local()
    monkeypatch.setattr(meeting, "read_launcher", lambda: Launched(places.rank, 0, 3, 3, is_launched=True))
    return places


def test_a_rank_that_does_not_come_is_named_on_those_that_do(monkeypatch):
    places = _launched(monkeypatch, free_port())
    monkeypatch.setattr(meeting, "_SECONDS_OF_SILENCE", 1.0)

    def meet(rank):
        places.rank = rank
        with pytest.raises(SettingsError, match=r"of 3 ranks, rank 1 did not arrive at 127.0.0.1:\d+\.\nRead"):
            meeting.meet()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, (0, 2)))


def test_a_port_that_nobody_listens_at_is_named(monkeypatch):
    _launched(monkeypatch, 9).rank = 1
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "0.005")
    with pytest.raises(SettingsError, match=r"does not meet rank 0 at 127.0.0.1:9 \(MASTER_ADDR.*Connection refused"):
        meeting.meet()


def test_the_steps_that_are_tried_are_the_next_of_a_run_that_has_begun(tmp_path, capsys, monkeypatch):
    """Its first weights are gone, as they may be then."""
    run_file = write_run(tmp_path)
    (tmp_path / "first").mkdir()
    RunCase(str(write_run(tmp_path / "first")), until=1)()
    begun = [f"init.from={tmp_path}/first/run", "checkpoint.every=1", "checkpoint.keep=9"]
    RunCase(str(run_file), overrides=tuple(begun), until=2)()
    shutil.rmtree(tmp_path / "first")
    files = hash_folder(tmp_path / "run")
    capsys.readouterr()
    try_steps(str(run_file), begun, "zero0")
    told = capsys.readouterr().out
    assert "resuming from step 2" in told
    assert "all is well; steps 3 to 7, trained and saved, took" in told
    speed, hours = (float(text.replace(",", "")) for text in re.findall(_PACE, told)[0])
    # The run has made 2 of its 20: what was tried is not kept.
    assert hours == pytest.approx(18 * _TOKENS / speed / 3600, rel=0.05)
    assert hash_folder(tmp_path / "run") == files
    refused = rf"^the run in {tmp_path}/run was started .*(.|\n)*toolkit branch \S+/run "
    with pytest.raises(SettingsError, match=refused):
        try_steps(str(run_file), [*begun, "lr.peak=0.5"], "zero0")
    RunCase(str(run_file), overrides=tuple(begun))()
    monkeypatch.chdir(tmp_path / "run")
    try_steps("run.toml", ["run.dir=."], "zero0")
    assert "all is well; the run has finished at step 20" in capsys.readouterr().out


_PLANTED = """
import importlib.metadata, os, shutil, socket, time
from pathlib import Path

if os.environ.get("RANK") == "1":
    now, found, usage, open_file = time.time, importlib.metadata.distributions, shutil.disk_usage, Path.open

    def without_tokenizers(**named):
        return [] if named.get("name") == "tokenizers" else found(**named)

    def other_file(path, *how, **named):
        if path.name.startswith(".look-"):
            raise FileNotFoundError(2, "No such file", str(path))
        return open_file(path, *how, **named)

    socket.gethostname = lambda: "bob"
    time.time = lambda: now() + 300
    importlib.metadata.distributions = without_tokenizers
    shutil.disk_usage = lambda path: usage(path)._replace(free=1000)
    Path.open = other_file
"""


def _start(folder, arguments, more_of_rank_1=()):
    (folder / "sitecustomize.py").write_text(_PLANTED if more_of_rank_1 else "")
    launch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    launch |= {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]), "COLUMNS": "2000"}
    return [
        start(
            [str(PRETRAIN), "--doctor", *arguments, *(more_of_rank_1 if rank else ())],
            {**launch, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]


@pytest.mark.slow
def test_the_faults_of_one_of_two_ranks_are_named(tmp_path):
    run_file = write_run(tmp_path)
    ranks = _start(tmp_path, ["--config", str(run_file)], ["--set", f"data.validation={tmp_path}/none"])
    told, other = outputs(ranks, seconds=240)
    assert [rank.returncode for rank in ranks] == [2, 2], told + other
    assert "Traceback" not in told + other
    # Among others: the machine may be busy.
    assert " of 11 checks failed: start, packages, run, shared folder, clock, disk" in told
    assert "tokenizers: rank 0 on" in told
    assert "rank 1 on bob has not installed" in told
    assert f"rank 1 on bob: no corpus at {tmp_path}/none" in told
    assert "rank 1 on bob: +300 s" in told
    assert "rank 1 on bob: 0.0 GB" in told
    assert "rank 1 on bob has seen, but not locked" in told
    assert not list(tmp_path.glob("**/.look-*"))


@pytest.mark.slow
def test_two_equal_ranks_train_a_step_and_leave_nothing(tmp_path):
    ranks = _start(tmp_path, ["--config", str(write_run(tmp_path)), "--ds_config", "zero2"])
    told, other = outputs(ranks, seconds=240)
    assert [rank.returncode for rank in ranks] == [0, 0], told + other
    assert "all-reduce" in told
    assert "all is well; steps 1 to 5, trained and saved, took" in told
    assert sorted(path.name for path in tmp_path.iterdir() if "run" in path.name) == ["run.toml"]
