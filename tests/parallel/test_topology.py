"""Where ranks stand, and how the rows of a step are divided among them."""

import numpy as np
import pytest

from toolkit.core.errors import SettingsError
from toolkit.parallel.launcher import Launched, read_launcher
from toolkit.parallel.topology import ParallelSettings, batch_plan, topology


def test_rows_are_divided_by_micro_batch_then_rank():
    plan = batch_plan(12, 2, data_parallel=3)
    assert plan.accumulation == 2
    assert plan.row_numbers(1).tolist() == [[2, 3], [8, 9]]
    assert plan.describe() == "12 rows a step = 2 a micro-batch x 2 micro-batches x 3 data-parallel ranks"


def test_what_ranks_gather_goes_back_in_step_order():
    plan = batch_plan(12, 2, data_parallel=3)
    per_rank = np.stack([plan.row_numbers(rank).ravel() for rank in range(3)]).astype(np.uint8)
    assert plan.in_step_order(per_rank[..., None]).ravel().tolist() == list(range(12))


@pytest.mark.parametrize(("rows", "ranks", "share"), [(1152, 1, 12), (8, 2, 4), (26, 2, 1), (1152, 192, 6)])
def test_the_default_micro_batch_is_the_largest_share_up_to_12(rows, ranks, share):
    assert batch_plan(rows, None, data_parallel=ranks).micro_batch_rows == share


@pytest.mark.parametrize(
    ("rows", "micro", "ranks", "remedy"),
    [
        (10, 4, 1, "Set train.micro_batch_rows to 1, 2, 5 or 10, change --num-procs, or"),
        (10, None, 3, "Change --num-procs so that the number of data-parallel ranks is 1, 2, 5 or 10, or change"),
        (8, 3, 2, "Set train.micro_batch_rows to 1, 2 or 4,"),
        (1152, None, 7, ".* the number of data-parallel ranks is 4, 6, 8 or 9, or"),
        (1, None, 7, ".* the number of data-parallel ranks is 1, or"),
    ],
)
def test_uneven_shares_are_refused_with_the_numbers_that_divide(rows, micro, ranks, remedy):
    with pytest.raises(SettingsError, match=f"does not divide {rows}.\n{remedy}"):
        batch_plan(rows, micro, data_parallel=ranks)


def test_without_model_parallelism_a_rank_is_its_data_rank():
    for rank in range(4):
        place = topology(rank, 4, ParallelSettings(tp=1, pp=1))
        assert (place.data_rank, place.dp, place.world_size) == (rank, 4, 4)
        assert place.data_parallel_ranks == (0, 1, 2, 3)


def test_data_ranks_count_copies_of_the_model():
    """12 ranks, tp = 2 within pp = 3: two copies; tensor ranks are neighbours, stages four ranks apart."""
    places = [topology(rank, 12, ParallelSettings(tp=2, pp=3)) for rank in range(12)]
    assert [place.data_rank for place in places] == [0, 0, 1, 1] * 3
    assert {place.dp for place in places} == {2}
    assert [places[rank].data_parallel_ranks for rank in (0, 1, 2, 7, 11)] == [(0, 2), (1, 3), (0, 2), (5, 7), (9, 11)]


@pytest.mark.parametrize(("ranks", "tp", "pp"), [(6, 4, 1), (2, 4, 1), (8, 2, 3)])
def test_degrees_that_do_not_divide_the_ranks_are_refused(ranks, tp, pp):
    with pytest.raises(SettingsError, match=f"parallel.tp={tp} x parallel.pp={pp} = {tp * pp} does not divide {ranks}"):
        topology(0, ranks, ParallelSettings(tp=tp, pp=pp))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Launched(0, 0, 1, 1, is_launched=False)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_SIZE": "4"},
         Launched(5, 1, 8, 4, is_launched=True, is_one_machine=False)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_SIZE": ""},
         Launched(5, 1, 8, 4, is_launched=True, is_one_machine=False)),
        ({"MASTER_ADDR": "ann"}, Launched(0, 0, 1, 1, is_launched=False)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "ann"},
         Launched(1, 1, 2, 2, is_launched=True, main_address="ann", is_one_machine=False)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "ann", "LOCAL_SIZE": "2"},
         Launched(1, 1, 2, 2, is_launched=True)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
         Launched(1, 1, 2, 2, is_launched=True)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, Launched(1, 1, 2, 2, is_launched=True)),
    ],
)  # fmt: skip
def test_the_launchers_variables(environment, expected):
    assert read_launcher(environment) == expected
