"""A sample of the proofs, which take long: `make proofs` runs them whole."""

from pathlib import Path

import pytest

from tests.proofs.kills import LAYOUTS, kill_at_random
from tests.proofs.layout_table import measure, table
from tests.proofs.slurm import Case, ask_at_step, finished_in_time, is_available, stopped_and_resumed, too_short
from tests.support.layouts import Layout


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, layout: Layout) -> None:
    killed = kill_at_random(tmp_path, layout, kills=2, seed=1)
    assert killed.differences == []
    assert len(killed.steps) == 2


@pytest.mark.slow
def test_layouts_of_four_ranks_give_the_numbers_of_one(tmp_path: Path) -> None:
    layouts = [Layout("pipeline", 4, tp=2, pp=2), Layout("zero1", 4, tp=2)]
    rows, spread = measure(tmp_path, layouts, ["tied GQA"])
    assert [problem for row in rows for problem in row.problems(spread)] == []
    assert "| pipeline tp2 pp2 | 4 |" in table(rows, spread)


@pytest.mark.long
@pytest.mark.skipif(not is_available(), reason="no Slurm with two idle nodes here")
def test_a_slurm_job_is_queued_again_where_it_got_on_and_only_there(tmp_path: Path) -> None:
    case = Case(tmp_path, steps=60, seconds_per_batch=0.05)
    case.make()
    assert stopped_and_resumed(case, nodes=2, ask=ask_at_step(20)).startswith("stopped and queued again at step ")
    assert too_short(case).startswith("ended once, with code 1")
    assert finished_in_time(case).startswith("ended once, with code 0")
