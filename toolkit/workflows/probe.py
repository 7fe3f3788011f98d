"""The process of a probe: `python -m toolkit.workflows.probe RUN_DIR STEP` prints the score of a run's checkpoint.

Training starts it beside itself, so it takes the lowest priority and one thread, and ends with the process that started
it. It reads the labelled files, and the checkpoint's tokenizer and weights (fp32); attention is bidirectional, whatever
the objective was.

Shapes: T tokens of one forward pass, D model width.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.processes import end_after, end_with
from toolkit.run.settings import ProbeSettings, RunSettings

if TYPE_CHECKING:
    from toolkit.checkpoint.read import Checkpoint
    from toolkit.finetuning import EncoderSource, Task
    from toolkit.finetuning.linear_probe import HiddenStates, Vectors
    from toolkit.finetuning.trainer import Features
    from toolkit.model.config import ModelSettings
    from toolkit.model.encoder import Body

_LOWEST_PRIORITY = 19
_MOST_TOKENS = 4096
"""Of a forward pass, unless one input has more."""


def main() -> int:
    """Score one checkpoint, and print the score as a line of JSON; the exit code of the process."""
    parser = argparse.ArgumentParser(prog="python -m toolkit.workflows.probe", description=__doc__)
    parser.add_argument("run_dir", help="folder of a run whose settings have [probe]")
    parser.add_argument("step", type=int, help="one that has a checkpoint")
    parser.add_argument("--parent", type=int, help="id of the process that started this one, and with which it ends")
    arguments = parser.parse_args()
    os.nice(_LOWEST_PRIORITY)
    if arguments.parent is not None:
        end_with(arguments.parent)
    try:
        scores = probe_checkpoint(arguments.run_dir, arguments.step)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(scores), flush=True)
    return 0


def check_probe(settings: RunSettings) -> None:
    """Read the files of a run's probe, if it has one, so that a mistake in them is found before training."""
    if settings.probe is None:
        return
    task = _task(settings.probe)
    try:
        task.read(_files(settings.probe))
    except UserError as error:
        raise SettingsError(
            f"[probe] of the run: {error}\n"
            f"It reads what `toolkit finetune {settings.probe.kind}` reads with the default options."
        ) from error


def probe_checkpoint(run_dir: str, step: int) -> dict[str, Any]:
    """The scores of the checkpoint of a step: `score`, the main one, and by the names of their metrics."""
    import torch

    from toolkit.checkpoint.read import open_unverified
    from toolkit.finetuning.linear_probe import probe_scores
    from toolkit.model.config import ModelSettings
    from toolkit.run.folder import RunFolder
    from toolkit.run.load import read_without_objectives

    torch.set_num_threads(1)
    folder = RunFolder(run_dir)
    settings = read_without_objectives(folder.settings_file).probe
    if settings is None:
        raise SettingsError(f"{folder.settings_file} has no [probe]. Add it to the run, or give another one.")
    # The rank that wrote it has hashed it on the way.
    checkpoint = open_unverified(folder.checkpoint(step))
    task = _task(settings)
    data = task.read(_files(settings))
    model = ModelSettings.model_validate(checkpoint.manifest.table("model"))
    features = task.encode(data, task.framed(_source(checkpoint, model)))
    scores = probe_scores(task, data, features, _hidden_states(checkpoint, model), steps=settings.steps)
    return {"score": scores[task.metric], **scores}


def _task(settings: ProbeSettings) -> "Task[Any]":
    from toolkit.finetuning import get_task

    family = get_task(settings.kind)
    return family(family.Settings())


def _files(settings: ProbeSettings) -> dict[Any, Path]:
    from toolkit.finetuning import Split

    return {Split.TRAIN: Path(settings.train), Split.TEST: Path(settings.test)}


def _source(checkpoint: "Checkpoint", model: "ModelSettings") -> "EncoderSource":
    """Configuration and tokenizer as an export of the checkpoint has them, so that inputs are those of fine-tuning."""
    from toolkit.conversion.exported_tokenizer import write_tokenizer
    from toolkit.conversion.forms import ExportDtype, ExportForm, configuration, hub_form
    from toolkit.finetuning import open_source

    form = ExportForm.BIDIRECTIONAL
    with tempfile.TemporaryDirectory(prefix="toolkit-probe-") as scratch:
        folder, vocabulary = Path(scratch) / "encoder", checkpoint.manifest.vocabulary.vocabulary()
        hub = hub_form(model, form, None)
        configuration(hub, form, model, vocabulary=vocabulary, dtype=ExportDtype.FP32).save_pretrained(folder)
        write_tokenizer(folder, checkpoint, form=form, longest=model.max_position_embeddings)
        return open_source(str(folder))


def _hidden_states(checkpoint: "Checkpoint", settings: "ModelSettings") -> "HiddenStates":
    import torch

    from toolkit.conversion.parity import open_native

    native = open_native(checkpoint, settings, rounded_to=torch.float32)
    body = native.encoder.model
    # Not the head, which with a large vocabulary is a good part of the weights.
    body.load_state_dict({name: native.read(f"model.{name}") for name in body.state_dict()}, assign=True)
    return lambda features: _packed_forward(body, features)


def _packed_forward(body: "Body", features: "Features") -> "Iterator[tuple[int, Vectors]]":
    """Hidden states (T, D) of inputs, several of them packed as the segments of one row; the shortest first."""
    import numpy as np
    import torch

    from toolkit.core.types import AttentionKind

    lengths = np.array([len(row["input_ids"]) for row in features])
    pending = [int(number) for number in np.argsort(lengths, kind="stable")]
    while pending:
        count = max(1, int(np.searchsorted(np.cumsum(lengths[pending]), _MOST_TOKENS, side="right")))
        chosen, pending = pending[:count], pending[count:]
        ids = torch.tensor([[id_ for number in chosen for id_ in features[number]["input_ids"]]])
        segments = torch.from_numpy(np.repeat(np.arange(1, count + 1), lengths[chosen]))[None]
        with torch.inference_mode():
            hidden_TD = body(ids, segments, AttentionKind.BIDIRECTIONAL, None).numpy()
        yield from zip(chosen, np.split(hidden_TD, np.cumsum(lengths[chosen])[:-1]), strict=True)


if __name__ == "__main__":
    end_after(main)
