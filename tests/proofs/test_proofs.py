"""A sample of the proofs, which take long: `make proofs` runs them whole."""

import importlib.util
import time
from pathlib import Path

import pytest

from tests.proofs.groups import Case as GroupsCase
from tests.proofs.groups import cancel_a_job, kill_side_by_side
from tests.proofs.kills import LAYOUTS, kill_at_random
from tests.proofs.layout_table import measure, table
from tests.proofs.slurm import Case, ask_at_step, finished_in_time, is_available, stopped_and_resumed, too_short
from tests.support.layouts import Layout
from tests.support.ray_nodes import kill_at_work, two_nodes, workers_of


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, layout: Layout) -> None:
    killed = kill_at_random(tmp_path, layout, kills=2, seed=1)
    assert killed.differences == []
    assert len(killed.steps) == 2


@pytest.mark.slow
def test_layouts_of_four_ranks_give_the_numbers_of_one(tmp_path: Path) -> None:
    layouts = [Layout("pipeline", 4, tp=2, pp=2), Layout("zero1", 4, tp=2)]
    models = ["tied GQA", "untied ModernBERT", "untied UltraBERT"]
    rows, spreads = measure(tmp_path, layouts, models)
    assert [problem for row in rows for problem in row.problems(max(spreads))] == []
    assert "| pipeline tp2 pp2 | 4 |" in table(rows, spreads, models)


@pytest.mark.slow
def test_a_corpus_whose_commands_and_jobs_are_killed_is_that_of_one_command(tmp_path: Path) -> None:
    case = GroupsCase(tmp_path, num_copies=10)
    case.make()
    assert kill_side_by_side(case, kills=4, seed=1) == []
    assert not is_available() or cancel_a_job(case) == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `cluster`")
def test_a_corpus_of_a_ray_cluster_that_loses_a_worker_is_that_of_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = GroupsCase(tmp_path, num_copies=40)
    case.make()
    with two_nodes(tmp_path, monkeypatch) as (head, other):
        command = case.start("cluster", "--executor=ray")
        while case.num_whole("cluster") < 2 or not (workers_of(head) and workers_of(other)):
            assert command.poll() is None, command.communicate()[0]
            time.sleep(0.05)
        (actor,) = workers_of(head)
        worker = kill_at_work(actor, tmp_path / "cluster")
        said, _ = command.communicate(timeout=1200)
    assert command.returncode == 0, said
    assert f"ended by a crash or kill of process {worker.pid} on" in said
    assert case.differences("cluster") == []


@pytest.mark.long
def test_a_slurm_job_is_queued_again_where_it_got_on_and_only_there(tmp_path: Path) -> None:
    # Asked only here: a Slurm whose controller is down takes seconds to say so, and every process imports this file.
    if not is_available():
        pytest.skip("no Slurm with two idle nodes here")
    case = Case(tmp_path, steps=60, seconds_per_batch=0.05)
    case.make()
    assert stopped_and_resumed(case, nodes=2, ask=ask_at_step(20)).startswith("stopped and queued again at step ")
    assert too_short(case).startswith("ended once, with code 1")
    assert finished_in_time(case).startswith("ended once, with code 0")
