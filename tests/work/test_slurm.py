"""Jobs of Slurm by name: which are submitted, and which are in the queue."""

import pytest

from tests.support.slurm import Slurm
from toolkit.core.errors import SettingsError
from toolkit.work.slurm import SlurmJobs


def keep(folder, *names, after=()):
    jobs = SlurmJobs(folder / "jobs.json")
    for name in names:
        jobs.keep(name, ["--wrap", "true"], log=folder / name, after=after)
    return jobs.num_submitted


def test_a_job_in_the_queue_is_submitted_once(tmp_path, monkeypatch, capsys):
    slurm = Slurm(tmp_path, monkeypatch)
    assert keep(tmp_path, "a", "b") == 2
    assert keep(tmp_path, "a", "b") == 0
    slurm.end(1)
    assert keep(tmp_path, "a", "b", after=("2",)) == 1
    assert slurm.jobs == {"1": ("a", ""), "2": ("b", ""), "3": ("a", "2")}
    assert capsys.readouterr().out.splitlines()[-2:] == ["a: job 3, submitted, after job 2", "b: job 2, pending"]


def test_the_last_line_counts_what_is_in_the_queue_now(tmp_path, monkeypatch, capsys):
    slurm, jobs = Slurm(tmp_path, monkeypatch), SlurmJobs(tmp_path / "jobs.json")
    jobs.keep_equal("true", tmp_path, "worker", most=2, options=())
    slurm.end(1)
    SlurmJobs(tmp_path / "jobs.json").keep_equal("true", tmp_path, "worker", most=2, options=())
    told = [line for line in capsys.readouterr().out.splitlines() if "submitted, " in line]
    assert [line.partition(";")[0] for line in told] == [
        "2 jobs submitted, 2 in the queue now",
        "1 job submitted, 2 in the queue now",
    ]


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("sacct", "FAILED|NonZeroExitCode|2:0"),
        ("scontrol", "JobId=1 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0"),
    ],
)
def test_how_a_job_ended_is_told_when_it_is_submitted_again(tmp_path, monkeypatch, capsys, program, printed):
    slurm, told = Slurm(tmp_path, monkeypatch), tmp_path / "slurm" / "bin" / program
    told.write_text(f'#!/bin/bash\n[[ ${{*: -1}} == 1 ]] && echo "{printed}"\n')
    told.chmod(0o755)
    keep(tmp_path, "a")
    slurm.end_all()
    keep(tmp_path, "a", "b")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "a: job 2, submitted; job 1 ended as failed (NonZeroExitCode, exit code 2:0)",
        "b: job 3, submitted",
    ]


@pytest.mark.parametrize(("name", "pattern"), [("a", "a"), ("50%j", r"50\%j"), ("a\\b", r"a\\b"), ("%\\%", r"\%\\\%")])
def test_a_log_is_no_pattern(tmp_path, monkeypatch, name, pattern):
    slurm = Slurm(tmp_path, monkeypatch)
    SlurmJobs(tmp_path / "jobs.json").keep("x", ["--wrap", "true"], log=tmp_path / name)
    words = slurm.words(1)
    assert words[words.index("--output") + 1] == f"{tmp_path}/{pattern}"


def test_another_job_with_its_number_is_not_it(tmp_path, monkeypatch):
    slurm = Slurm(tmp_path, monkeypatch)
    keep(tmp_path, "a")
    slurm.end_all()
    slurm.add("1|RUNNING|None|b")
    assert SlurmJobs(tmp_path / "jobs.json").live == {}


def test_what_slurm_refuses_is_told_with_the_command(tmp_path, monkeypatch):
    Slurm(tmp_path, monkeypatch)
    (tmp_path / "slurm" / "bin" / "sbatch").write_text("#!/bin/bash\necho invalid partition >&2; exit 1\n")
    with pytest.raises(SettingsError, match=r"Slurm refuses a: invalid partition\nThe command was: sbatch --parsable"):
        keep(tmp_path, "a")


def test_a_machine_without_slurm_has_no_job_and_takes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "jobs.json").write_text('{"a": "1"}')
    assert SlurmJobs(tmp_path / "jobs.json").live == {}
    with pytest.raises(SettingsError, match="needs sbatch, which is not on the path"):
        keep(tmp_path, "a")
