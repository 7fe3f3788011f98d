"""Runs on two hosts, which are two addresses of this machine with a launcher each; Slurm's commands are stand-ins."""

import os
import re
import signal
import sys
import textwrap
import time

import pytest
from deepspeed.launcher import runner

from tests.resume.test_resume import compare
from tests.support.launches import (
    ending,
    free_port,
    kill_host,
    outputs,
    start_hosts,
    start_program,
    start_ranks,
    wait_for_step,
)
from tests.support.runs import write_run
from toolkit.core.files import shipped_folder

_LONG = ("schedule.0.steps=60", "schedule.1.steps=60", "checkpoint.every=20", "log.every=5")
_LAUNCHERS = shipped_folder("launchers")


def _arguments(run_file, folder):
    overrides = [f"run.dir={folder}", *_LONG]
    return ["--ds_config", "zero2", "--config", str(run_file)] + [part for one in overrides for part in ("--set", one)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run file, and the folder of a run on two ranks that nothing interrupted."""
    folder = tmp_path_factory.mktemp("hosts")
    run_file = write_run(folder)
    ranks = start_ranks(2, _arguments(run_file, folder / "whole"), {})
    first, _ = outputs(ranks, seconds=240)
    assert ending(first) == "finished at step 120"
    return run_file, folder / "whole"


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "dead"), [("deepspeed", 1), ("torchrun", 0)])
def test_a_host_is_killed_and_both_are_started_again(tmp_path, whole, launcher, dead):
    run_file, uninterrupted = whole
    cut = tmp_path / "cut"
    hosts = start_hosts(launcher, tmp_path, _arguments(run_file, cut))
    wait_for_step(cut, 55, hosts)
    kill_host(hosts[dead])
    (left,) = outputs([hosts[1 - dead]], seconds=60)
    assert hosts[1 - dead].returncode == 1
    assert f"error: rank {1 - dead}: rank {dead} on " in left or f"error: rank {dead} on " in left
    assert "Start the same command again, on all machines" in left
    first, _ = outputs(start_hosts(launcher, tmp_path, _arguments(run_file, cut)), seconds=240)
    assert "resuming from step 40" in first
    assert "finished at step 120" in first
    assert compare(uninterrupted, cut) == []


@pytest.mark.long
def test_a_run_folder_that_one_host_does_not_see_is_told(tmp_path, whole):
    """The same relative path on two hosts, below a working folder of each."""
    run_file, _ = whole
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    arguments = _arguments(run_file, "run")
    hosts = start_hosts("deepspeed", tmp_path, arguments, working_folders=(here, there))
    first, second = outputs(hosts, seconds=240)
    assert [host.returncode for host in hosts] == [2, 2]
    assert re.search(r"error: rank 1 on .* does not see what rank 0 writes to the run folder run\.", first)
    assert "Set run.dir to an absolute path on a file system that all machines of the run share" in first
    assert "Traceback" not in first + second
    assert not list(here.rglob("step-*"))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands: two nodes with the addresses 127.0.0.1 and 127.0.0.2; requeued jobs are noted."""
    programs = tmp_path / "bin"
    programs.mkdir()
    _program(
        programs / "srun",
        """
        while [[ $1 == --* ]]; do [[ $1 == --kill-on-bad-exit=1 ]] && is_strict=yes; shift; done
        [[ -n ${is_strict-} ]] || exit 99
        for node in 0 1; do SLURM_NODEID=$node SLURM_PROCID=$node SLURM_STEP_NUM_TASKS=2 "$@" & nodes+=($!); done
        for node in 0 1; do wait -n || { code=${code:-$?}; kill "${nodes[@]}" 2>/dev/null; }; done
        exit "${code:-0}"
        """,
    )
    _program(
        programs / "scontrol",
        f"""
        if [[ "$*" == "show hostnames node[1-2]" ]]; then printf '127.0.0.1\\n127.0.0.2\\n'
        else echo "$*" >> {tmp_path}/requeued; fi
        """,
    )
    _program(programs / "python", f'exec {sys.executable} "$@"')
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        # The script takes the port 20,000 + job % 20,000.
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }


def _program(path, text):
    path.write_text(f"#!/bin/bash\n{textwrap.dedent(text)}")
    path.chmod(0o755)


@pytest.mark.long
def test_a_slurm_job_stops_before_its_time_is_over_and_resumes(tmp_path, whole, cluster):
    run_file, uninterrupted = whole
    cut = tmp_path / "cut"
    overrides = [part for one in (f"run.dir={cut}", *_LONG) for part in ("--set", one)]
    job = ["bash", str(_LAUNCHERS / "slurm.sbatch"), str(run_file), *overrides]
    first = start_program(job, cluster)
    wait_for_step(cut, 30, [first])
    first.send_signal(signal.SIGUSR1)
    (log,) = outputs([first], seconds=120)
    stopped = re.search(r"stopped at step (\d+)", log)
    assert first.returncode == 0, log
    assert 30 <= int(stopped[1]) < 120
    assert (tmp_path / "requeued").read_text() == f"requeue {cluster['SLURM_JOB_ID']}\n"
    second = start_program(job, cluster)
    (log,) = outputs([second], seconds=240)
    assert second.returncode == 0, log
    assert f"resuming from step {stopped[1]}" in log
    assert "finished at step 120" in log
    assert compare(uninterrupted, cut) == []
    assert len((tmp_path / "requeued").read_text().splitlines()) == 1


@pytest.mark.long
def test_a_slurm_job_that_saved_nothing_new_is_not_requeued(tmp_path, whole, cluster):
    """The signal comes before the first step."""
    run_file, _ = whole
    job = start_program(
        ["bash", str(_LAUNCHERS / "slurm.sbatch"), str(run_file), "--set", f"run.dir={tmp_path / 'run'}"], cluster
    )
    while not (tmp_path / "run" / "run.toml").exists():
        assert job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    (log,) = outputs([job], seconds=120)
    assert job.returncode == 1
    assert "stopped at step 0" in log
    assert "the time limit came before a new checkpoint, so the job is not requeued. It needs a longer --time" in log
    assert not (tmp_path / "requeued").exists()


@pytest.mark.long
def test_a_slurm_job_whose_run_is_finished_is_not_requeued(tmp_path, whole, cluster):
    """The signal comes behind the last step, and then while a job starts that finds the run finished."""
    run_file, _ = whole
    overrides = [f"run.dir={tmp_path / 'run'}", "schedule.0.steps=3", "schedule.1.steps=3", "log.every=1"]
    command = ["bash", str(_LAUNCHERS / "slurm.sbatch"), str(run_file)]
    command += [part for one in overrides for part in ("--set", one)]
    job = start_program(command, cluster)
    wait_for_step(tmp_path / "run", 6, [job])
    job.send_signal(signal.SIGUSR1)
    (log,) = outputs([job], seconds=120)
    assert (job.returncode, ending(log)) == (0, "finished at step 6")

    removed_at_start = tmp_path / f".toolkit-stop-{cluster['SLURM_JOB_ID']}"
    removed_at_start.touch()
    job = start_program(command, cluster)
    while removed_at_start.exists():
        time.sleep(0.02)
    # It listens from the next lines on.
    time.sleep(0.2)
    job.send_signal(signal.SIGUSR1)
    (log,) = outputs([job], seconds=120)
    assert (job.returncode, ending(log)) == (0, "already finished at step 6")
    assert not (tmp_path / "requeued").exists()


@pytest.mark.long
def test_a_slurm_job_that_cannot_run_is_not_requeued(tmp_path, whole, cluster):
    run_file, _ = whole
    command = ["bash", str(_LAUNCHERS / "slurm.sbatch"), str(run_file), "--set", "lr.peak=-1"]
    job = start_program(command, cluster)
    (log,) = outputs([job], seconds=120)
    assert job.returncode == 2
    assert "invalid value for lr.peak" in log
    assert not (tmp_path / "requeued").exists()


def test_the_example_of_a_hostfile_is_one():
    text = (_LAUNCHERS / "hostfile.example").read_text().splitlines()
    assert runner._parse_hostfile(text) == {"worker-0": 8, "worker-1": 8}
