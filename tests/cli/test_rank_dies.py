"""A rank that dies brings the others down within a minute, and its own message is the one that is read."""

import time

import pytest

from tests.support.launches import (
    PRETRAIN,
    free_port,
    install_failing_objective,
    kill_host,
    outputs,
    start,
    start_hosts,
    start_ranks,
)
from tests.support.runs import write_run

_FAILING = ("schedule.0.objective=failing", "schedule.0.steps=60_000")


@pytest.fixture
def run(tmp_path):
    """Arguments of a run with the failing objective, and the environment in which it is found."""
    overrides = [f"run.dir={tmp_path / 'run'}", *_FAILING]
    arguments = ["--ds_config", "zero2", "--config", str(write_run(tmp_path))]
    return arguments + [part for override in overrides for part in ("--set", override)], install_failing_objective(
        tmp_path
    )


@pytest.mark.slow
def test_a_bug_on_one_rank_shows_one_traceback(run):
    arguments, environment = run
    ranks = start_ranks(2, arguments, {**environment, "HOW_RANK_1_FAILS": "raises"})
    first, second = outputs(ranks, seconds=120)
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert second.index("Traceback") < second.index("TypeError: a bug in the objective")
    assert "Traceback" not in first
    assert first.splitlines()[-1] == "error: rank 1 failed: TypeError: a bug in the objective"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["is killed", "is killed while rank 0 hangs"])
def test_a_killed_rank_ends_the_other_one(run, how):
    """No launcher here, so that nothing else can end rank 0."""
    arguments, environment = run
    ranks = start_ranks(2, arguments, {**environment, "HOW_RANK_1_FAILS": how})
    ranks[1].wait(timeout=300)
    died = time.monotonic()
    first, second = outputs(ranks, seconds=60)
    assert time.monotonic() - died < 30
    assert [rank.returncode for rank in ranks] == [1, -9]
    assert "Traceback" not in first + second
    assert "rank 1 on " in (told := first[first.index("error: ") :])
    assert "has ended, and the run with it" in told


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "what"), [("hangs", "is at toolkit/training/problem.py"), ("is stopped", "does not answer")]
)
def test_a_rank_that_hangs_is_named_before_the_timeout(run, how, what):
    """A minute for collectives, and 20 seconds for an answer."""
    arguments, environment = run
    ranks = start_ranks(2, arguments, {**environment, "HOW_RANK_1_FAILS": how, "DEEPSPEED_TIMEOUT": "1"})
    assert ranks[0].wait(timeout=300) == 1
    first = ranks[0].communicate()[0]
    kill_host(ranks[1])
    assert "Traceback" not in first
    told = first[first.index("error: ") :]
    assert told.startswith("error: rank 0: a collective of a step has waited 0:00:54 for rank 1 on ")
    assert f", which {what}" in told


def _toolkit_train(arguments, environment):
    run_file, overrides = arguments[3], arguments[4:]
    return [start(["-m", "toolkit.cli", "train", run_file, "--num-procs", "2", *overrides], environment)]


def _deepspeed(arguments, environment):
    launcher = ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_port", "29517"]
    return [start([*launcher, str(PRETRAIN), *arguments], environment)]


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["toolkit train", "deepspeed", "two hosts", "torchrun"])
@pytest.mark.parametrize("how", ["raises", "is killed while rank 0 hangs"])
def test_under_every_launcher(tmp_path, run, launcher, how):
    arguments, environment = run
    environment |= {"HOW_RANK_1_FAILS": how}
    if launcher == "toolkit train":
        processes = _toolkit_train(arguments, environment)
    elif launcher == "deepspeed":
        processes = _deepspeed(arguments, environment)
    else:
        processes = start_hosts({"two hosts": "deepspeed"}.get(launcher, launcher), tmp_path, arguments, environment)
    logs = outputs(processes, seconds=180)
    printed = "\n".join(logs)
    expected = "TypeError: a bug in the objective" if how == "raises" else "rank 1 on "
    assert expected in printed
    assert all(process.returncode != 0 for process in processes)
    if launcher == "toolkit train":
        assert [process.returncode for process in processes] == [1 if how == "raises" else 137]
    if how == "raises":
        # The log of rank 1's machine: rank 0 repeats the error in one line, after it or in the log of its own.
        assert logs[-1].index("Traceback") < logs[-1].index("TypeError: a bug in the objective")


@pytest.mark.long
@pytest.mark.parametrize(
    "form", ["--standalone", "--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:{}", "--master_port={}"]
)
def test_torchrun_starts_killed_ranks_again(run, form):
    """Its store has the addresses of the first attempt, which are those of ranks that have ended."""
    arguments, environment = run
    launcher = ["-m", "torch.distributed.run", *form.format(free_port()).split(), "--max-restarts=1"]
    # Behind the checkpoint of step 10, the second attempt has no twentieth batch.
    settings = ["--set", "schedule.0.steps=22", "--set", "schedule.1.steps=1", "--set", "checkpoint.every=10"]
    words = [*launcher, "--nproc_per_node=2", str(PRETRAIN), *arguments, *settings]
    (printed,) = outputs([start(words, {**environment, "HOW_RANK_1_FAILS": "is killed"})], seconds=180)
    assert "finished at step 23" in printed
