"""Trained weights shared by several cells.

Cells that differ only in their test data train the same network. One of them trains, and saves the weights in a folder
that records what the training started from; the others load them.
"""

import hashlib
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.core.errors import NonFiniteError
from toolkit.core.files import atomic_file, atomic_write
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.precision import choose_autocast
from toolkit.finetuning.task import Task
from toolkit.finetuning.trainer import Features

_NOTE, _TRAINED, _DIVERGED = "declared.json", "trained.pt", "diverged.txt"


def fit_once(task: Task[Any], network: nn.Module, inputs: Features, source: EncoderSource, *, folder: Path) -> None:
    """Train in place, or load the weights that a training with the same start and inputs has saved.

    Inputs are compared, not files: files of equal content may be read as different inputs, as when several splits name
    one file. The folder is only for this training.
    """
    settings, precision = task.settings.model_dump(mode="json"), choose_autocast(torch.get_num_threads())
    declared = {"task": task.name, "settings": settings, "precision": precision}
    _open(folder, {**declared, "start": _digest(network, inputs)})
    trained, diverged = folder / _TRAINED, folder / _DIVERGED
    if diverged.is_file():
        raise NonFiniteError(diverged.read_text())
    if trained.is_file():
        network.load_state_dict(torch.load(trained, map_location="cpu", weights_only=True))
        return
    try:
        task.fit(network, inputs, source, folder=folder)
    except NonFiniteError as error:
        atomic_write(diverged, str(error))
        raise
    with atomic_file(trained) as file:
        torch.save(network.state_dict(), file)


def _open(folder: Path, declared: Mapping[str, Any]) -> None:
    """Create a folder that records which training it belongs to; empty it if it belongs to another."""
    note, text = folder / _NOTE, json.dumps(declared, indent=2) + "\n"
    if folder.is_dir() and not (note.is_file() and note.read_text() == text):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(text)


def _digest(network: nn.Module, inputs: Features) -> str:
    """SHA-256 of everything a training depends on other than its settings."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for name, weights in network.state_dict().items():
        digest.update(name.encode())
        digest.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    for row in inputs:
        digest.update(json.dumps(row, default=_plain).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """JSON values of sets (whose order differs between processes), arrays, and objects of other packages' tasks."""
    if isinstance(value, frozenset | set):
        return sorted(value)
    return value.tolist() if hasattr(value, "tolist") else pickle.dumps(value).hex()
