"""Shares of weights. That the layers compute what a single process does, tests/equivalence shows."""

import pytest
import torch

from toolkit.core.errors import SettingsError
from toolkit.model.parameters import parameter_axes
from toolkit.parallel.division import TENSOR_PARALLEL_TABLE, Sharing, check_tensor_parallel
from toolkit.parallel.shares import Share
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings


@pytest.mark.parametrize(("length", "ranks"), [(8, 2), (7, 2), (97, 4), (32_001, 8), (3, 3)])
@pytest.mark.parametrize("dimension", [0, 1])
def test_shares_make_the_whole(length: int, ranks: int, dimension: int) -> None:
    whole = torch.arange(length * 2.0).view((length, 2) if dimension == 0 else (2, length)) + 1
    shares = [Share(tuple(whole.shape), dimension, number, ranks) for number in range(ranks)]
    parts = [share.take(whole) for share in shares]
    assert {part.shape for part in parts} == {shares[0].shape}
    assert sum(int((part != 0).sum()) for part in parts) == whole.numel()
    assert torch.equal(shares[-1].join(parts), whole)


def test_an_index_is_in_one_share() -> None:
    shares = [Share((7, 2), 0, number, 2) for number in range(2)]
    index = torch.tensor([-1, 0, 3, 4, 6])
    assert [share.index_of(index).tolist() for share in shares] == [[-1, 0, 3, -1, -1], [-1, -1, -1, 0, 2]]


def test_the_table_covers_every_matrix_and_nothing_else_but_the_norms_of_heads() -> None:
    for options in MODEL_OPTIONS.values():
        for name, axes in parameter_axes(tiny_settings(**options)).items():
            sharing = TENSOR_PARALLEL_TABLE.get(axes)
            is_inside = name.endswith((".bias", "q_norm.weight", "k_norm.weight"))
            is_matrix = len(axes) == 2 and not name.startswith("head.")
            assert (sharing is not None) == (is_matrix or is_inside), name
            assert (sharing is Sharing.INSIDE) == name.endswith(("q_norm.weight", "k_norm.weight"))


def test_degrees_that_do_not_divide_the_model_are_refused_with_its_divisors() -> None:
    check_tensor_parallel(tiny_settings(), 2)
    with pytest.raises(
        SettingsError, match=r"4 does not divide model.num_key_value_heads=2.\nSet parallel.tp to 1 or 2"
    ):
        check_tensor_parallel(tiny_settings(), 4)
