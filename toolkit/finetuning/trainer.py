"""Training through transformers' Trainer, and prediction in the order of the inputs."""

import contextlib
import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Sampler
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from toolkit.core.console import Progress, progress
from toolkit.core.errors import NonFiniteError
from toolkit.core.files import atomic_file
from toolkit.engine.gpus import has_gpu
from toolkit.finetuning.precision import choose_autocast
from toolkit.finetuning.settings import FinetuningSettings
from toolkit.finetuning.source import EncoderSource

Features = Sequence[dict[str, Any]]
"""Inputs of a network: `input_ids`, whatever else its forward takes, and `labels`; other entries do not reach it."""

_BATCHES_PER_GROUP = 50
_SECONDS_BETWEEN_CHECKPOINTS = 300.0
_TRAINED = "trained.pt"


class Trainable(Protocol):
    """Part of a `Task` that training and prediction need."""

    settings: FinetuningSettings

    def logits(self, outputs: Any) -> torch.Tensor:
        """Logits in what the network returns."""

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels of a batch."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""

    def num_targets(self, labels: torch.Tensor) -> int:
        """Number of losses in the mean."""


class StepEnds(TrainerCallback):
    """Moves the bar, and saves what a killed run resumes from every five minutes: short runs save nothing."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._last = bar, time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Take note of an update, for the Trainer."""
        self._bar.update(state.global_step)
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_CHECKPOINTS and state.global_step < state.max_steps:
            self._last = time.monotonic()
            control.should_save = True


def train(network: nn.Module, features: Features, *, task: Trainable, source: EncoderSource, folder: Path) -> None:
    """Fine-tune in place: AdamW, warm-up, then linear to 0, batches of like length; bf16 where it is faster."""

    def loss(outputs: Any, labels: torch.Tensor, *, num_items_in_batch: int) -> torch.Tensor:
        logits, num_targets = task.logits(outputs).float(), task.num_targets(labels)
        # A mean over nothing is not a number, and would not go away when it is weighed by 0.
        return task.loss(logits, labels) * (num_targets / num_items_in_batch) if num_targets else logits.sum() * 0.0

    make = partial(_Trainer, task, train_dataset=features, data_collator=collator(task, source), compute_loss_func=loss)
    run_trainer(make, network, task.settings, folder, steps=task.settings.num_steps(len(features)))


def run_trainer(
    make: Callable[..., Trainer],
    network: nn.Module,
    settings: FinetuningSettings,
    folder: Path,
    *,
    steps: int,
    kind: Callable[..., TrainingArguments] = TrainingArguments,
    **more: Any,
) -> None:
    """Train in place, with the trainer that `make` makes from arguments of a kind, which may have `more`."""
    rate = settings.peak_rate(sum(parameter.numel() for parameter in network.parameters()))
    settle_accelerator()
    arguments = kind(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=settings.rows_at_once,
        gradient_accumulation_steps=settings.batch_rows // settings.rows_at_once,
        learning_rate=rate,
        lr_scheduler_type="linear",
        warmup_steps=round(settings.warmup_fraction * steps),
        optim="adamw_torch_fused",
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        adam_epsilon=settings.adam_eps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.grad_clip,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=not has_gpu(),
        bf16=choose_autocast(torch.get_num_threads()) == "bf16",
        save_strategy="no",
        save_total_limit=1,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=has_gpu(),
        **more,
    )
    # On several GPUs the Trainer replicates the model and multiplies the batch: the result would depend on the machine.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    with progress("fine-tuning", total=steps, unit="steps") as bar:
        _run(make(model=network, args=arguments, callbacks=[StepEnds(bar)]), folder)
    if not all(bool(torch.isfinite(weight).all()) for weight in network.parameters()):
        raise NonFiniteError(
            f"the weights have diverged: they are no longer finite after {steps} steps at learning rate {rate:g}. "
            "Try a smaller one."
        )


def _run(trainer: Trainer, folder: Path) -> None:
    """Train from the beginning, or from what a killed run left in `folder`; the network is in fp32 again afterwards."""
    assert trainer.model is not None
    trained, begun = folder / _TRAINED, time.monotonic()
    if trained.is_file():
        trainer.model.load_state_dict(torch.load(trained, weights_only=True))
        return
    checkpoint, _ = last_checkpoint(folder)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=checkpoint)
    # The Trainer leaves its autocast around the forward: what the network then gave would not be what its folder gives.
    # `unwrap_model` would take the class's own decorators off as well.
    for name in ("forward", "_original_forward"):
        vars(trainer.model).pop(name, None)
    if checkpoint or time.monotonic() - begun >= _SECONDS_BETWEEN_CHECKPOINTS:
        # What follows may take long as well, and be killed.
        keep_trained(trainer.model, folder)


def keep_trained(network: nn.Module, folder: Path) -> None:
    """Write the weights with which a training in this folder ends, unless they are there."""
    if not (folder / _TRAINED).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / _TRAINED) as file:
            torch.save(network.state_dict(), file)


class LengthGroupedSampler(Sampler[int]):
    """Row numbers of one epoch after another; each slice of `batch_rows` has rows of like length.

    Rows are shuffled, sorted by length within groups of 50 batches (fewer where the file is small), cut into batches,
    and the batches are shuffled. Each iteration is the next epoch, so that a resumed run begins where it was killed.
    """

    def __init__(self, lengths: Sequence[int], *, batch_rows: int, seed: int, first_epoch: int = 0) -> None:
        self._lengths, self._batch_rows = np.array(lengths), batch_rows
        self._seed, self._epoch = seed, first_epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        rows, size = draw.permutation(len(self)), self._batch_rows
        # At least four groups, so that a small file does not give the same batches in every epoch.
        group = size * max(1, min(_BATCHES_PER_GROUP, len(rows) // (4 * size)))
        for start in range(0, len(rows), group):
            part = rows[start : start + group]
            rows[start : start + group] = part[np.argsort(self._lengths[part], kind="stable")]
        num_whole = len(rows) // size * size
        whole = draw.permutation(rows[:num_whole].reshape(-1, size))
        # A last, smaller batch stays last: the Trainer cuts this order into slices.
        return iter([*whole.ravel().tolist(), *rows[num_whole:].tolist()])


class _Trainer(Trainer):
    """The Trainer with batches of like length, with which a resumed run goes on, and a family's count of targets."""

    def __init__(self, task: Trainable, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._task = task

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], int]:
        """The parts of a batch, and the number of targets in all of them, by which the loss of each is divided."""
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return parts, sum(self._task.num_targets(part["labels"]) for part in parts)

    def _get_train_sampler(self, train_dataset: object = None) -> LengthGroupedSampler:
        features: Any = self.train_dataset
        lengths, size = [len(row["input_ids"]) for row in features], self._task.settings.batch_rows
        _, done = last_checkpoint(Path(str(self.args.output_dir)))
        return LengthGroupedSampler(
            lengths, batch_rows=size, seed=self.args.seed, first_epoch=done // math.ceil(len(lengths) / size)
        )


def last_checkpoint(folder: Path) -> tuple[str | None, int]:
    """The newest whole checkpoint of a killed run and its step; None and 0 without one."""
    for found in sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True):
        # The Trainer writes this file last, so a kill in the middle leaves none, or half of one.
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return str(found), int(json.loads((found / "trainer_state.json").read_text())["global_step"])
    return None, 0


def settle_accelerator() -> None:
    """Tell DeepSpeed, which trainers import, that there is no GPU where there is none: it would warn."""
    if not has_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def collator(task: Trainable, source: EncoderSource) -> Callable[[Features], dict[str, torch.Tensor]]:
    """Makes a batch of inputs, padded on the right to the longest; the attention mask hides the padding."""
    padding = right_padding(source.tokenizer)

    def collate(features: Features) -> dict[str, torch.Tensor]:
        rows = [{name: row[name] for name in row if name in source.accepted and name != "labels"} for row in features]
        batch: dict[str, torch.Tensor] = dict(padding.pad(rows, return_tensors="pt"))
        width = batch["input_ids"].shape[1]
        labels = [row.get("labels") for row in features]
        if all(label is not None for label in labels):
            batch["labels"] = task.collate_labels(labels, width=width)
        return batch

    return collate


def right_padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that pads on the right, with whatever id."""
    padding = copy.deepcopy(tokenizer)
    padding.padding_side = "right"
    if padding.pad_token_id is None:
        padding.pad_token_id = 0  # Any id will do behind the mask.
    return padding


@torch.no_grad()
def predict(
    network: nn.Module, features: Features, *, task: Trainable, source: EncoderSource
) -> list[npt.NDArray[np.float32]]:
    """Logits of each input, in their own order: (classes,), or (tokens, classes) without padding. In fp32.

    The Trainer's own prediction would follow its length-grouping sampler, and so answer in another order.
    """
    network.eval()
    device = next(network.parameters()).device
    collate, lengths = collator(task, source), [len(row["input_ids"]) for row in features]
    by_length = sorted(range(len(features)), key=lengths.__getitem__)
    answers: list[npt.NDArray[np.float32]] = [np.empty(0, np.float32)] * len(features)
    rows = task.settings.rows_at_once
    with progress("predicting", total=len(features), unit="inputs") as bar:
        for start in range(0, len(by_length), rows):
            chosen = by_length[start : start + rows]
            batch = collate([features[number] for number in chosen])
            batch.pop("labels", None)
            logits = task.logits(network(**{name: tensor.to(device) for name, tensor in batch.items()}))
            for number, answer in zip(chosen, logits.float().cpu().numpy(), strict=True):
                answers[number] = answer[: lengths[number]] if answer.ndim == 2 else answer
            bar.update(start + len(chosen))
    return answers
