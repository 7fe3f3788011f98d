"""Checkpoints without a run, for the tests of all packages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.text import tiny_tokenizer
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry, VocabularyEntry
from toolkit.checkpoint.read import ParameterState
from toolkit.checkpoint.write import abandon, begin, finish, merge_parts, write_part
from toolkit.core.types import Vocabulary
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.testing.models import tiny_settings

TINY_VOCABULARY = Vocabulary(size=384, mask_id=2, pad_id=1, bos_id=None, eos_id=0, special_ids=(0, 1, 2))
"""The ids of `tests.support.text.tiny_tokenizer`."""


def model_states(encoder: Encoder) -> list[ParameterState]:
    """An encoder's parameters with made-up moments, as an engine would collect them."""
    return [
        ParameterState(name, weight.detach(), torch.full_like(weight, 0.25), torch.full_like(weight, 0.5))
        for name, weight in encoder.named_parameters()
    ]


def write_tiny_run(folder: Path, *, steps: Sequence[int] = (20,)) -> Path:
    """A run folder with a tiny encoder's checkpoints and tokenizer.

    Args:
        folder: its parent; the run is `folder / "run"`.
        steps: of the checkpoints.
    """
    tokenizer, settings = tiny_tokenizer(folder / "tokenizer"), tiny_settings(vocab_size=TINY_VOCABULARY.size)
    encoder = Encoder(settings)
    initialize_(encoder, 1)
    states = model_states(encoder)
    for step in steps:
        write_checkpoint(folder / "run/checkpoints", step, states=states, tokenizer_folder=tokenizer, model=settings)
    return folder / "run"


def states_of(step: int, sizes: Sequence[tuple[int, ...]] = ((3, 4), (5,), (2, 2))) -> list[ParameterState]:
    """Parameters `layer.I.weight` whose every number says its step, its place and which of the three tensors it is in.

    Number = 100 x step + 10 x place + (0 weight, 1 exp_avg, 2 exp_avg_sq).
    """
    return [
        ParameterState(f"layer.{i}.weight", *(torch.full(size, 100.0 * step + 10 * i + k) for k in range(3)))
        for i, size in enumerate(sizes)
    ]


def write_checkpoint(
    root: Path,
    step: int,
    *,
    states: Sequence[ParameterState],
    tokenizer_folder: Path,
    model: ModelSettings | None = None,
    vocabulary: Vocabulary = TINY_VOCABULARY,
    num_parts: int = 1,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write `states` as `num_parts` ranks would; returns the checkpoint's folder.

    Args:
        root: the folder that holds the `step-NNNNNNNN` folders.
        step: of the checkpoint.
        states: all parameters.
        tokenizer_folder: copied in.
        model: goes into the manifest's settings.
        vocabulary: of the tokenizer.
        num_parts: how many writers to play.
        settings: further settings for the manifest.
    """
    folder = begin(root, step)
    try:
        parts = [
            write_part(folder, part=part, num_parts=num_parts, parameters=states[part::num_parts])
            for part in range(num_parts)
        ]
    except BaseException:
        # As the engine does once all writers have stopped.
        abandon(folder)
        raise
    whole = merge_parts(parts)
    own = {} if model is None else {"model": model.model_dump(mode="json")}
    manifest = CheckpointManifest(
        toolkit_version="0.0.0",
        step=step,
        optimizer_step=step,
        tokens=1000 * step,
        data_position=8 * step,
        data_digest=f"{step:032x}",
        settings=own | (settings or {}),
        vocabulary=VocabularyEntry.of(vocabulary, "f" * 64),
        layout=LayoutEntry(world_size=num_parts, zero_stage=2),
        tensors=whole.tensors,
        files=whole.files,
        losses={"clm": 5.5, "mlm": 4.25},
    )
    return finish(folder, manifest, tokenizer_folder=tokenizer_folder)
