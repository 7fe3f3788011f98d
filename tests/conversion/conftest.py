from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import TINY_VOCABULARY, model_states, write_checkpoint
from tests.support.text import tiny_tokenizer
from toolkit.core.types import Vocabulary
from toolkit.model import ModelSettings, model_settings
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_

SETTINGS = {
    "run": {"dir": "/srv/someone/runs/first", "seed": 7},
    "precision": "bf16",
    "data": {"train": "/srv/someone/data/wiki", "sequence_length": 128, "windows": "documents"},
    "objectives": {"mlm": {"mask_ratio": 0.4}},
    "schedule": [{"objective": "clm", "steps": 10, "tokens": None}, {"objective": "mlm", "steps": 30, "tokens": None}],
    "train": {"steps": 40, "global_batch_rows": 8},
    "lr": {"peak": 0.001},
}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def make_checkpoint(tmp_path: Path, tokenizer_folder: Path) -> Callable[..., Path]:
    """Writes a checkpoint of a toy model with random weights, of a size at which a wrong detail shows.

    `run` has tables of the run's settings, `recorded` what the manifest says of the model though it is not so; other
    keywords change the model's. Norm weights are drawn too: at 1 a norm left out would go unnoticed.
    """

    def make(
        step: int = 20,
        *,
        tokenizer: Path = tokenizer_folder,
        vocabulary: Vocabulary = TINY_VOCABULARY,
        run: Mapping[str, object] | None = None,
        recorded: Mapping[str, object] | None = None,
        **changes: object,
    ) -> Path:
        settings: ModelSettings = model_settings("test", **({"vocab_size": 384, "initializer_range": 0.15} | changes))
        encoder = Encoder(settings)
        initialize_(encoder, seed=step)
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for name, parameter in encoder.named_parameters():
                if name.endswith(("norm.weight", ".bias")):
                    parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
        return write_checkpoint(
            tmp_path / "run" / "checkpoints",
            step,
            states=model_states(encoder),
            tokenizer_folder=tokenizer,
            model=settings.model_copy(update=recorded or {}),
            vocabulary=vocabulary,
            num_parts=2,
            settings={**SETTINGS, **(run or {})},
        )

    return make
