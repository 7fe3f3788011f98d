import pytest

from toolkit.core.errors import UserError
from toolkit.finetuning.paper import split_training


def test_five_percent_are_cut_off_as_datasets_does_with_seed_42():
    train, validation = split_training(40)
    assert validation == [32, 7]
    assert sorted(train + validation) == list(range(40))
    # SST-2; and a file for which 5 % for validation, rounded up, would be 8 rows.
    assert [len(split_training(rows)[1]) for rows in (67349, 140)] == [3368, 7]


def test_the_smallest_file_is_shared_and_a_single_row_is_refused():
    assert [len(part) for part in split_training(2)] == [1, 1]
    with pytest.raises(UserError, match=r"takes 5 % of the training file .* a single row"):
        split_training(1)
