"""Workers as actors of a Ray cluster of this machine: what they answer, and what happens when they are killed."""

import importlib.util
import os
import socket
from contextlib import closing
from dataclasses import replace

import psutil
import pytest

from tests.execution.test_local import KEYS, RUNNER, Silent, ids_of, is_written, item, kill, outcome
from tests.support.shares import Share
from toolkit.core.errors import SettingsError
from toolkit.execution import ray_actors
from toolkit.execution.ray_actors import RayExecutor
from toolkit.execution.ray_cluster import Cluster, _address
from toolkit.execution.ray_worker import ClusterWorker, Setting
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import Failed, Finished, Lost, Resources

# Not imported here: the command sets what Ray reads when it is imported.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `cluster`")


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        cluster = Cluster()
        # An executor leaves its cluster, and the next one has it too.
        with closing(cluster), pytest.MonkeyPatch.context() as stays:
            stays.setattr(cluster, "close", lambda: None)
            yield cluster


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def executor_of(cluster, folder, num=1, *, cpus=1, gpus=0):
    executor = RayExecutor(
        cluster,
        RUNNER,
        most=num,
        resources=Resources(cpus, gpus),
        logs=folder / "workers",
        shared="the folder",
        cpus_setting="the CPUs",
    )
    return closing(executor)


def ready(executor):
    """The first worker's number."""
    while not executor.workers:
        assert executor.wait(0.5) == []
    return executor.workers[0]


def do(executor, folder, word, key=KEYS[0]):
    executor.start(ready(executor), item(folder, word, key))
    (event,) = outcome(executor)
    return event


def test_a_worker_runs_many_items_and_is_replaced_after_a_bug(cluster, folder):
    with executor_of(cluster, folder) as executor:
        assert do(executor, folder, "work") == Finished(0, KEYS[0])
        assert do(executor, folder, "raise") == Failed(0, KEYS[0], "a file is broken")
        assert do(executor, folder, "break").message.startswith("RuntimeError: a bug\nTraceback")
        assert do(executor, folder, "work") == Finished(0, KEYS[0])
    first, second, third, fourth = ids_of(folder).read_text().split()
    assert first == second == third != fourth
    log = (folder / "workers" / "worker-0.log").read_text()
    assert log.count(f"--- {KEYS[0]}\n") == 4
    assert "RuntimeError: a bug" in log
    assert [path.name for path in (folder / "workers").iterdir()] == ["worker-0.log"]


def test_the_item_of_a_lost_worker_is_run_again_by_a_new_one(cluster, folder, capfd):
    words = {KEYS[0]: "die once", KEYS[1]: "exit"}
    with executor_of(cluster, folder, 2) as executor:
        items = [item(folder, words.get(key, "work"), key) for key in KEYS]
        failed = run_work(items, executor, share=Share(), observer=Silent())
    ids = [ids_of(folder, key).read_text().split() for key in KEYS]
    assert [len(found) for found in ids] == [2, 2, 1, 1]
    assert ids[0][0] != ids[0][1]
    assert failed.keys() == {KEYS[1]}
    assert "raylet" not in capfd.readouterr().out
    assert f"ended 2 times, last time by a crash or kill of process {ids[1][1]} on " in failed[KEYS[1]]


def test_one_that_is_killed_while_it_is_idle_loses_its_next_item_once(cluster, folder):
    with executor_of(cluster, folder) as executor:
        do(executor, folder, "work")
        kill(int(ids_of(folder).read_text()))
        assert isinstance(do(executor, folder, "work", KEYS[1]), Lost)
        assert do(executor, folder, "work", KEYS[1]) == Finished(0, KEYS[1])


def test_closing_ends_a_worker_in_the_middle_of_an_item(cluster, folder):
    with executor_of(cluster, folder) as executor:
        executor.start(ready(executor), item(folder, "sleep"))
        while not is_written(ids_of(folder)):
            executor.wait(0.1)
        process = psutil.Process(int(ids_of(folder).read_text()))
    _, alive = psutil.wait_procs([process], timeout=60)
    assert not alive


def test_a_cluster_without_room_is_refused(cluster, folder):
    with executor_of(cluster, folder, cpus=1000, gpus=1) as executor, pytest.raises(SettingsError) as error:
        executor.wait(1)
    assert "has room: a worker asks for 1000 CPU and 1 GPU, found " in str(error.value)
    assert "Set the CPUs (a worker's CPUs)" in str(error.value)


def test_a_busy_cluster_is_refused(cluster, folder, monkeypatch):
    cpus = len(os.sched_getaffinity(0))
    (folder / "other").mkdir()
    with executor_of(cluster, folder / "other", cpus=cpus) as other:
        do(other, folder, "work")
        monkeypatch.setattr(ray_actors, "_SECONDS_TO_PLACE", 2.0)
        with executor_of(cluster, folder, cpus=cpus) as executor, pytest.raises(SettingsError) as error:
            ready(executor)
    assert f"is busy: a worker asks for {cpus} CPU, and within 2 seconds no machine had them" in str(error.value)
    assert "Wait for what else runs" in str(error.value)


def test_a_machine_that_does_not_see_the_folder_is_refused(cluster, folder):
    with executor_of(cluster, folder) as executor:
        for mark in (folder / "workers").glob(".seen-*"):
            mark.unlink()
        with pytest.raises(SettingsError) as error:
            ready(executor)
    assert f"cannot run work: it does not see the folder {folder / 'workers'}" in str(error.value)
    assert "one file system" in str(error.value)


@pytest.mark.parametrize("case", ["own", "another user's", "a link", "a pipe", "stale", "none"])
def test_only_a_cluster_that_this_user_started_is_found(folder, monkeypatch, case):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    file = folder / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if case == "a link":
            (folder / "file").write_text(address)
            file.symlink_to(folder / "file")
        elif case == "a pipe":
            os.mkfifo(file)
        elif case != "none":
            file.write_text(address)
        if case == "stale":
            server.close()
        if case == "another user's":
            monkeypatch.setattr(os, "getuid", lambda: 1_000_001)
            with pytest.raises(SettingsError, match=r"belongs to another user\. Set RAY_ADDRESS"):
                _address()
        else:
            assert _address() == (address if case == "own" else None)


def test_keys_of_object_storage_reach_workers(monkeypatch, folder):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.setenv("OTHER_SECRET", "x")
    environment = Setting(RUNNER, folder / "log", folder / "mark").environment
    assert environment["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert "OTHER_SECRET" not in environment


def test_another_version_or_a_lost_working_directory_is_told(folder):
    mark = folder / "mark"
    mark.touch()
    setting = Setting(RUNNER, folder / "log", mark)
    other = replace(setting, versions={**setting.versions, "torch": "1.0"})
    assert ClusterWorker().open(other).startswith(f"it has version {setting.versions['torch']} of torch, and the")
    lost = replace(setting, directory=str(folder / "lost"))
    assert ClusterWorker().open(lost).endswith(f"working directory {folder / 'lost'}: No such file or directory")
