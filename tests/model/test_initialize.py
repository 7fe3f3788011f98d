"""Initial weights: what they depend on."""

import torch

from toolkit.model import Encoder
from toolkit.model.initialization import initial_weight, initialize_
from toolkit.testing.models import tiny_settings


def _weights(seed: int, **changes: object) -> dict[str, torch.Tensor]:
    encoder = Encoder(tiny_settings(**changes))
    initialize_(encoder, seed)
    return encoder.state_dict()


def test_a_weight_depends_on_seed_and_name_alone() -> None:
    shallow, deep, other = _weights(1), _weights(1, num_hidden_layers=3), _weights(2)
    for name, weight in shallow.items():
        assert torch.equal(weight, deep[name]), name
        assert torch.equal(weight, other[name]) == name.endswith("norm.weight"), name
    assert not torch.equal(shallow["model.layers.0.mlp.up_proj.weight"], shallow["model.layers.1.mlp.up_proj.weight"])


def test_biases_start_at_zero_and_norms_of_heads_at_one() -> None:
    weights = _weights(3, qkv_bias=True, qk_norm=True)
    biases = [weight for name, weight in weights.items() if name.endswith(".bias")]
    head_norms = [weight for name, weight in weights.items() if name.endswith(("q_norm.weight", "k_norm.weight"))]
    assert (len(biases), len(head_norms)) == (6, 4)
    assert all(torch.equal(bias, torch.zeros_like(bias)) for bias in biases)
    assert all(torch.equal(norm, torch.ones(16)) for norm in head_norms)


def test_tied_head_is_the_embedding() -> None:
    weights = _weights(4, tie_word_embeddings=True)
    assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
    expected = initial_weight("model.embed_tokens.weight", (97, 64), settings=tiny_settings(), seed=4)
    assert torch.equal(weights["lm_head.weight"], expected)


def test_narrow_weights_are_the_rounded_wide_ones() -> None:
    encoder = Encoder(tiny_settings()).bfloat16()
    initialize_(encoder, 5)
    assert torch.equal(encoder.lm_head.weight, _weights(5)["lm_head.weight"].bfloat16())
