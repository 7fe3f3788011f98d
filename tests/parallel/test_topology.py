"""How the rows of a step are dealt."""

import numpy as np
import pytest

from toolkit.core.errors import SettingsError
from toolkit.parallel.topology import batch_layout


def test_rows_are_dealt_by_micro_batch_then_rank():
    layout = batch_layout(12, 2, data_parallel=3)
    assert layout.accumulation == 2
    assert layout.row_numbers(1).tolist() == [[2, 3], [8, 9]]


def test_what_ranks_gather_goes_back_in_step_order():
    layout = batch_layout(12, 2, data_parallel=3)
    per_rank = np.stack([layout.row_numbers(rank).ravel() for rank in range(3)]).astype(np.uint8)
    assert layout.in_step_order(per_rank[..., None]).ravel().tolist() == list(range(12))


@pytest.mark.parametrize(("rows", "ranks", "share"), [(1152, 1, 12), (8, 2, 4), (26, 2, 1), (1152, 192, 6)])
def test_the_default_micro_batch_is_the_largest_share_up_to_12(rows, ranks, share):
    assert batch_layout(rows, None, data_parallel=ranks).micro_batch_rows == share


@pytest.mark.parametrize(("rows", "micro", "ranks"), [(10, 4, 1), (10, None, 3), (8, 3, 2)])
def test_uneven_deals_are_refused_with_the_arithmetic(rows, micro, ranks):
    with pytest.raises(SettingsError, match=f"does not divide {rows}"):
        batch_layout(rows, micro, data_parallel=ranks)
