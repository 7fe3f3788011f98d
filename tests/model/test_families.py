"""What every family keeps to, as every objective does its contract.

Held for all of `MODEL_OPTIONS`, in which each family has to be, elsewhere:

- logits, gradients, names and shapes are those of the stock classes of both kinds: `test_encoder`, `test_to_hf`;
- no token is seen from another segment or from padding: `test_encoder`;
- the table of parameters is the module's, and says how ranks share each: `test_config`, `test_tensor_parallel`;
- shares, stages and ZeRO give the gradients of one process: `tests/equivalence/test_gradients`.
"""

from itertools import permutations

import pytest
import torch

from toolkit.core.types import AttentionKind
from toolkit.model import Encoder
from toolkit.model.families import FAMILIES, HUB_TYPES
from toolkit.model.growth import Growth
from toolkit.model.initialization import initialize_
from toolkit.testing.models import MODEL_OPTIONS, dense_visibility, tiny_encoder, tiny_settings

_OPTIONS = {str(options.get("family", "llama")): options for options in MODEL_OPTIONS.values()} | {"llama": {}}
_SEGMENTS_BS = torch.tensor([[1] * 16, [1] * 3 + [2] * 11 + [0] * 2])


def test_every_family_is_among_the_models_of_all_tests() -> None:
    assert _OPTIONS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", AttentionKind)
def test_each_layer_reaches_as_far_as_its_type_says(family: str, kind: AttentionKind) -> None:
    """With the attention of one layer alone: a changed token changes the logits of those whose window it is in."""
    for number in range(4):
        encoder = tiny_encoder(seed=3, num_hidden_layers=4, **_OPTIONS[family])
        settings = encoder.settings
        with torch.no_grad():
            for other, layer in enumerate(encoder.model.layers):
                layer.self_attn.o_proj.weight.mul_(other == number)
        visible = dense_visibility(_SEGMENTS_BS, kind, settings.window(settings.layer_types[number], kind))
        for row, segments_S in enumerate(_SEGMENTS_BS):
            ids_S = torch.arange(len(segments_S))
            # Line j has another token at j; the last is as it was.
            ids_BS = ids_S + 50 * torch.cat(
                (torch.eye(len(ids_S), dtype=torch.int64), torch.zeros(1, len(ids_S)).long())
            )
            with torch.no_grad():
                logits = encoder.logits(ids_BS, segments_S.expand_as(ids_BS), kind).unflatten(0, ids_BS.shape)
            is_changed = (logits[:-1] != logits[-1]).any(-1).T
            is_real = segments_S != 0
            assert torch.equal(is_changed[is_real], visible[row][is_real]), number


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_begin_as_the_family_says(family: str) -> None:
    settings = tiny_settings(num_hidden_layers=2, hidden_size=128, intermediate_size=256, **_OPTIONS[family])
    encoder = Encoder(settings)
    initialize_(encoder, 3)
    scaled = FAMILIES[family].scaled_by_depth
    for name, parameter in encoder.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("norm.weight")))), name
        else:
            expected = 0.02 / (2.0 if name.endswith(scaled) and scaled else 1.0)
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", AttentionKind)
def test_a_width_that_doubles_doubles_the_logits(family: str, kind: AttentionKind) -> None:
    """A stream that repeats itself has the same norm; each product that reads it, halved, is the same as before.

    The head is not halved. Deeper models begin with layers that have what theirs have.
    """
    extra = {"qkv_bias": True, "qk_norm": True} if family == "llama" else {}
    one = tiny_encoder(seed=3, initializer_range=0.15, **(_OPTIONS[family] | extra))
    small = one.settings
    large = small.model_copy(
        update={"hidden_size": 128, "intermediate_size": 2 * small.intermediate_size}
        | {"prediction_head_size": 2 * small.prediction_head_size}
        | {"num_attention_heads": 8, "num_key_value_heads": small.num_key_value_heads and 2 * small.num_key_value_heads}
    )
    growth, weights, two = Growth(small, large), one.state_dict(), Encoder(large)
    assert growth.problem() is None
    with torch.no_grad():
        if one.lm_head.bias is not None:
            one.lm_head.bias.zero_()
        for name, parameter in two.named_parameters():
            parameter.copy_(growth.tile(name, weights[growth.source(name)]))
            if name.endswith(("proj.weight", "dense.weight", "linear1.weight", "linear2.weight")):
                parameter /= 2
        before, after = (encoder.logits(_SEGMENTS_BS + 20, _SEGMENTS_BS, kind) for encoder in (one, two))
    assert before.abs().max() > 1
    torch.testing.assert_close(after, 2 * before, rtol=0, atol=2e-5)
    deeper = Growth(small, large.model_copy(update={"num_hidden_layers": 7}))
    assert deeper.problem() is None
    for name in (name for name, _ in Encoder(deeper.large).named_parameters()):
        assert deeper.source(name) in weights, name


@pytest.mark.parametrize(("family", "other"), list(permutations(FAMILIES, 2)))
def test_a_model_grows_within_its_family_alone(family: str, other: str) -> None:
    small, large = (tiny_settings(num_hidden_layers=3, **_OPTIONS[name]) for name in (other, family))
    small = small.model_copy(update={"num_key_value_heads": large.num_key_value_heads})
    problem = Growth(small, large).problem()
    assert problem == f"the model is of the family {other} there, and of {family} here"


def test_a_model_type_is_of_one_family() -> None:
    assert len(HUB_TYPES) == sum(len(family.types) for family in FAMILIES.values())
