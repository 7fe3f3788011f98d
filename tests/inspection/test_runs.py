import pytest

from toolkit.inspection.runs import _model_line
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings


@pytest.mark.parametrize(
    ("family", "every", "where"),
    [
        ("modernbert", 3, "but in 2 of 4 layers"),
        ("ultrabert", 3, "but in 1 of 4 layers"),
        ("ultrabert", 5, "in all layers"),
    ],
)
def test_layers_that_see_everything_are_counted(family: str, every: int, where: str) -> None:
    options = MODEL_OPTIONS[family] | {"num_hidden_layers": 4, "global_attn_every_n_layers": every}
    model = tiny_settings(**options)
    assert f", windows of {model.local_attention} {where};" in _model_line(model)
