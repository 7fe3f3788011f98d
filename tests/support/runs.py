"""Tiny pretraining runs for tests, as picklable cases that any number of ranks can run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.run import load_run
from toolkit.testing.corpora import random_documents, write_token_corpus

_VOCABULARY = 97
MODERNBERT = (
    f"model={{family='modernbert', vocab_size={_VOCABULARY}, hidden_size=32, intermediate_size=48, "
    "num_hidden_layers=4, num_attention_heads=4, local_attention=8, global_attn_every_n_layers=2}"
)
"""An override of the model of `write_run`: both types of layers, a window shorter than a row."""
ULTRABERT = (
    f"model={{family='ultrabert', vocab_size={_VOCABULARY}, hidden_size=32, intermediate_size=48, num_hidden_layers=4, "
    "num_attention_heads=4, num_key_value_heads=2, local_attention=8, global_attn_every_n_layers=2, "
    "prediction_head_size=40, initializer_range=0.1}"
)
"""The same of UltraBERT. Of weights drawn as usual, two GELUs of a head so narrow leave gradients that are rounding."""


def write_run(folder: Path, *, phase_steps: int = 10) -> Path:
    """A corpus of random ids and a run file below `folder`: 8 rows of 64 a step, two phases of `phase_steps`, fp32.

    Returns the run file; its run folder is `folder`/run.
    """
    # So many that the run begins a second epoch after three quarters of its steps, however short it is.
    documents = random_documents(16 * phase_steps, vocabulary_size=_VOCABULARY, max_length=90, first_id=3, seed=1)
    corpus = _corpus(folder / "corpus", documents)
    held_out = random_documents(20, vocabulary_size=_VOCABULARY, max_length=90, first_id=3, seed=2)
    validation = _corpus(folder / "validation", held_out)
    text = f"""
precision = "fp32"
[run]
dir = "{folder / "run"}"
seed = 7
[model]
vocab_size = {_VOCABULARY}
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
train = "{corpus}"
validation = "{validation}"
sequence_length = 64
[[schedule]]
objective = "clm"
steps = {phase_steps}
[[schedule]]
objective = "mlm"
steps = {phase_steps}
[train]
global_batch_rows = 8
micro_batch_rows = 4
[lr]
peak = 1e-2
warmup_steps = {max(1, phase_steps // 5)}
decay_steps = {max(2, 2 * phase_steps // 5)}
[log]
every = 1
tensorboard = false
[eval]
rows = 4
"""
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _corpus(folder: Path, documents: Sequence[npt.NDArray[np.integer]]) -> Path:
    return write_token_corpus(folder, documents, vocabulary_size=_VOCABULARY, eos=0, pad=1, mask=2)


@dataclass(frozen=True)
class RunCase:
    """One pretraining run; call it on every rank. Returns how it ended and what metrics.jsonl holds."""

    run_file: str
    ds_config: str = "zero0"
    overrides: tuple[str, ...] = field(default=())
    until: int | None = None
    """As `pretrain` takes it."""

    def __call__(self) -> tuple[str, list[dict[str, Any]]]:
        """Run it."""
        from toolkit.training import pretrain

        settings = load_run(self.run_file, self.overrides)
        outcome = pretrain(settings, ds_config=self.ds_config, until=self.until)
        return str(outcome), read_metrics(Path(settings.run.dir))


def read_metrics(run_folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    path = run_folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
