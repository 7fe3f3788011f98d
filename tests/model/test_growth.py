"""Tiling, against the loops of the paper's repository written out by hand; `test_families` doubles whole models."""

import pytest
import torch

from toolkit.model import model_settings
from toolkit.model.growth import Growth, _middle, shape_in_words
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        (3, 3, [0, 1, 2]),
        (3, 4, [0, 1, 2, 0]),
        (3, 5, [2, 0, 1, 2, 0]),
        (2, 6, [0, 1, 0, 1, 0, 1]),
        (3, 12, [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_the_small_one_lies_in_the_middle_and_repeats(small: int, large: int, expected: list[int]) -> None:
    assert _middle(small, large).tolist() == expected


def test_layers_are_spread_as_gopher_did() -> None:
    base, large = (model_settings("test", vocab_size=64, num_hidden_layers=number) for number in (22, 28))
    # ModernBERT's two depths; round(i x 22 / 28) by hand.
    assert Growth(base, large).layers == [
        *(0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10),
        *(11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 19, 20, 20, 21),
    ]
    one, three = (model_settings("test", vocab_size=64, num_hidden_layers=number) for number in (1, 3))
    assert Growth(one, three).layers == [0, 0, 0]
    # Its first layer lacks a norm that others need.
    two, five = (tiny_settings(num_hidden_layers=number, **MODEL_OPTIONS["modernbert"]) for number in (2, 5))
    assert Growth(two, five).layers == [0, 1, 1, 1, 1]
    alone = two.model_copy(update={"num_hidden_layers": 1})
    assert str(Growth(alone, two).problem()).startswith("its only block there has no norm before its attention")


def test_heads_are_tiled_whole_with_the_one_they_share() -> None:
    """2 key-value heads of 2 query heads each become 3 of 2: query heads 2, 3 | 0, 1 | ... in the same order."""
    small = model_settings("test", vocab_size=64)
    large = small.model_copy(update={"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3})
    assert (small.num_attention_heads, small.key_value_heads, small.head_size) == (4, 2, 16)
    growth = Growth(small, large)
    rows = torch.arange(64.0)[:, None].expand(64, 64)
    query = growth.tile("model.layers.0.self_attn.q_proj.weight", rows)
    assert query.shape == (96, 96)
    assert (query[::16, 0] / 16).tolist() == [0, 1, 2, 3, 0, 1]
    key = growth.tile("model.layers.0.self_attn.k_proj.weight", rows[:32])
    assert (key[::16, 0] / 16).tolist() == [0, 1, 0]
    output = growth.tile("model.layers.0.self_attn.o_proj.weight", rows.T)
    assert (output[0, ::16] / 16).tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": 32, "num_attention_heads": 2}, "hidden_size, num_attention_heads would shrink"),
        ({"num_hidden_layers": 1}, "num_hidden_layers would shrink"),
        ({"num_key_value_heads": 1}, "key_value_heads would shrink"),
        ({"hidden_size": 128}, "a head is 16 wide there and 32 here"),
        ({"num_key_value_heads": 4}, "2 query heads share a key-value head there, and 1 here"),
        ({"num_hidden_layers": 5, "hidden_size": 128, "num_attention_heads": 8}, None),
    ],
)
def test_what_cannot_be_tiled_is_said(changes: dict[str, int], problem: str | None) -> None:
    small = model_settings("test", vocab_size=64)
    found = Growth(small, small.model_copy(update=changes)).problem()
    assert found == problem if problem is None else problem in str(found)


def test_a_head_with_a_width_of_its_own_is_told() -> None:
    small = tiny_settings(**MODEL_OPTIONS["ultrabert"])
    assert shape_in_words(small).endswith(f" of keys), a head of width {small.prediction_head_size}")
    assert shape_in_words(tiny_settings(**MODEL_OPTIONS["modernbert"])).endswith(" of keys)")
