"""Workers on a Ray cluster of this machine: what they leave, and what happens when they are killed."""

import importlib.util
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.toy_job import ToyJob
from toolkit.core.errors import SettingsError
from toolkit.work import ray as on_ray
from toolkit.work.claims import Item
from toolkit.work.commands import job_file
from toolkit.work.ray import Cluster, OnRay, Resources, Setting, _address

# Not imported here: the command sets what Ray reads when it is imported.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `cluster`")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        cluster = Cluster()
        # A crew leaves its cluster, and the next one has it too.
        with closing(cluster), pytest.MonkeyPatch.context() as stays:
            stays.setattr(cluster, "close", lambda: None)
            yield cluster


def crew_of(cluster: Cluster, job: ToyJob, most: int = 1, *, cpus: int = 1, gpus: int = 0) -> OnRay:
    return OnRay(
        job,
        cluster=cluster,
        most=most,
        resources=Resources(cpus, gpus),
        logs=job.root / "logs",
        shared="the folder",
        cpus_setting="the CPUs",
    )


def run(cluster: Cluster, job: ToyJob, most: int = 1, **resources: int) -> list[str]:
    """All that a crew says of lost workers."""
    said = list[str]()
    with crew_of(cluster, job, most, **resources) as crew:
        crew.run(said.extend)
    return said


def has_ended(process: int) -> bool:
    """True too of one whose parent is gone, and which nobody has waited for yet."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_item_of_a_lost_worker_is_done_by_a_new_one(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = {"a": "die once", "b": "exit", "c": "break", "d": "work"}
    job = ToyJob(tmp_path, [Item(key, word) for key, word in words.items()])
    said = run(cluster, job, 2)
    assert job.done == {"a", "d"}
    # The other worker may begin it between the second end and the look that notes it.
    attempts = [len(set(job.attempts(key))) for key in "abcd"]
    assert attempts in ([2, 2, 1, 1], [2, 3, 1, 1])
    assert {line.split(" in ")[0].partition(";")[0] for line in said} == {
        "a: its worker ended by signal 9 (SIGKILL), as the system does where memory is short",
        "b: its worker ended by exit code 7",
    }
    assert job.failures["b"].startswith(f"its worker ended {attempts[1]} times, last time by exit code 7")
    assert "raylet" not in capfd.readouterr().out


def test_a_worker_ends_with_its_actor_which_is_told_by_its_place(cluster: Cluster, tmp_path: Path) -> None:
    job, said, killed = ToyJob(tmp_path, [Item("a", "wait")]), list[str](), list[int]()

    def kill(lines: Sequence[str]) -> None:
        said.extend(lines)
        attempts = job.attempts("a")
        if len(attempts) == 1 and not killed:
            actor = psutil.Process(attempts[0]).parent()
            assert actor is not None
            actor.kill()
            killed.extend(attempts)
        if len(attempts) == 2:
            assert has_ended(attempts[0])
            (tmp_path / "go").touch()

    with crew_of(cluster, job) as crew:
        crew.run(kill)
    where = f"process {killed[0]} on {socket.gethostname()}"
    assert said[0].startswith(f"a: its worker ended by a crash or kill of {where}; see")
    assert job.done == {"a"}


def test_the_end_of_the_block_ends_a_worker_in_the_middle_of_an_item(cluster: Cluster, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, [Item("a", "wait")])
    with crew_of(cluster, job) as crew:
        crew.run(lambda lines: crew.stop() if job.attempts("a") else None)
    left = [psutil.Process(pid) for pid in job.attempts("a") if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive


def test_a_cluster_without_room_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        run(cluster, ToyJob(tmp_path, [Item("a")]), cpus=1000, gpus=1)
    assert "has room: a worker asks for 1000 CPU and 1 GPU, found " in str(error.value)
    assert "Set the CPUs (a worker's CPUs)" in str(error.value)


def test_a_busy_cluster_is_refused(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus, errors = len(os.sched_getaffinity(0)), list[str]()
    busy, waiting = (ToyJob(tmp_path / name, [Item("a", "wait")]) for name in ("busy", "waiting"))

    def ask(lines: Sequence[str]) -> None:
        if busy.attempts("a") and not errors:
            monkeypatch.setattr(on_ray, "_SECONDS_TO_PLACE", 2.0)
            with pytest.raises(SettingsError) as error:
                run(cluster, waiting, cpus=cpus)
            errors.append(str(error.value))
            other.stop()

    with crew_of(cluster, busy, cpus=cpus) as other:
        other.run(ask)
    assert f"is busy: a worker asks for {cpus} CPU, and within 2 seconds no machine had them" in errors[0]
    assert "Wait for what else runs" in errors[0]


def test_a_machine_that_does_not_see_the_folder_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, [Item("a")])
    crew = crew_of(cluster, job)
    job_file(job.folder).unlink()
    with crew, pytest.raises(SettingsError) as error:
        crew.run(lambda lines: None)
    assert f"cannot run work: it does not see the folder {job.folder}" in str(error.value)
    assert "one file system" in str(error.value)


@pytest.mark.parametrize("case", ["own", "another user's", "a link", "a pipe", "stale", "none"])
def test_only_a_cluster_that_this_user_started_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if case == "a link":
            (tmp_path / "file").write_text(address)
            file.symlink_to(tmp_path / "file")
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


def test_keys_of_object_storage_reach_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.setenv("OTHER_SECRET", "x")
    environment = Setting(tmp_path / "job", tmp_path / "log").environment
    assert environment["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert "OTHER_SECRET" not in environment


def test_another_version_or_a_lost_working_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    setting = Setting(tmp_path / "job", tmp_path / "log")
    assert setting.fault() is None
    fault = replace(setting, versions={**setting.versions, "torch": "1.0"}).fault()
    assert fault == f"it has version {setting.versions['torch']} of torch, and the command 1.0"
    fault = replace(setting, directory=str(tmp_path / "lost")).fault()
    assert fault == f"it has no folder {tmp_path / 'lost'}, the command's working directory"
