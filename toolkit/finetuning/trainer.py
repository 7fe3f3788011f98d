"""Training through transformers' Trainer, and prediction in the order of the inputs."""

import copy
import os
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
from toolkit.engine.gpus import has_gpu
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.precision import choose_autocast
from toolkit.finetuning.settings import FinetuningSettings

Features = Sequence[dict[str, Any]]
"""Inputs of a network: `input_ids`, other arguments of its forward, and `labels`; other entries are not passed."""

_BATCHES_PER_GROUP = 50


class Trainable(Protocol):
    """Part of a `Task` that training and prediction need."""

    settings: FinetuningSettings

    def logits(self, outputs: Any) -> torch.Tensor:
        """Logits from the network's return value."""

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels of a batch."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""

    def num_targets(self, labels: torch.Tensor) -> int:
        """Number of losses in the mean."""


class _StepEnds(TrainerCallback):
    """Advances the progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Show the number of updates; called by the Trainer."""
        self._bar.update(state.global_step)


def train(network: nn.Module, features: Features, *, task: Trainable, source: EncoderSource, folder: Path) -> None:
    """Fine-tune in place: AdamW, warm-up, then linear to 0, batches of similar length; bf16 where it is faster."""

    def loss(outputs: Any, labels: torch.Tensor, *, num_items_in_batch: int) -> torch.Tensor:
        logits, num_targets = task.logits(outputs).float(), task.num_targets(labels)
        # The mean over no targets is NaN, and would stay NaN when multiplied by 0.
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
    """Train in place, with the trainer that `make` builds from arguments of class `kind`, `more` included."""
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
        trainer = make(model=network, args=arguments, callbacks=[_StepEnds(bar)])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    # The Trainer leaves autocast around the forward: outputs would differ from those of the saved folder.
    # `unwrap_model` would also remove the class's own decorators.
    for name in ("forward", "_original_forward"):
        vars(trainer.model).pop(name, None)
    if not all(bool(torch.isfinite(weight).all()) for weight in network.parameters()):
        raise NonFiniteError(
            f"the weights have diverged: they are no longer finite after {steps} steps at learning rate {rate:g}. "
            "Try a smaller one."
        )


class LengthGroupedSampler(Sampler[int]):
    """Row numbers, epoch by epoch; each slice of `batch_rows` has rows of similar length.

    Rows are shuffled, sorted by length within groups of 50 batches (fewer if the file is small), cut into batches, and
    the batches are shuffled. Each iteration is the next epoch.
    """

    def __init__(self, lengths: Sequence[int], *, batch_rows: int, seed: int) -> None:
        self._lengths, self._batch_rows, self._seed, self._epoch = np.array(lengths), batch_rows, seed, 0

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
    """Trainer with batches of similar length and the family's count of targets."""

    def __init__(self, task: Trainable, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._task = task

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], int]:
        """The parts of a batch, and their total number of targets, by which each part's loss is divided."""
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return parts, sum(self._task.num_targets(part["labels"]) for part in parts)

    def _get_train_sampler(self, train_dataset: object = None) -> LengthGroupedSampler:
        features: Any = self.train_dataset
        lengths = [len(row["input_ids"]) for row in features]
        return LengthGroupedSampler(lengths, batch_rows=self._task.settings.batch_rows, seed=self.args.seed)


def settle_accelerator() -> None:
    """Tell DeepSpeed, which trainers import, to use the CPU if there is no GPU: otherwise it would warn."""
    if not has_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def collator(task: Trainable, source: EncoderSource) -> Callable[[Features], dict[str, torch.Tensor]]:
    """Return a collator that pads inputs on the right to the longest; the attention mask hides the padding."""
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
    """A copy of a tokenizer that pads on the right, with any id if it has no padding token."""
    padding = copy.deepcopy(tokenizer)
    padding.padding_side = "right"
    if padding.pad_token_id is None:
        padding.pad_token_id = 0  # Any id will do under the mask.
    return padding


@torch.no_grad()
def predict(
    network: nn.Module, features: Features, *, task: Trainable, source: EncoderSource
) -> list[npt.NDArray[np.float32]]:
    """fp32 logits of each input, in input order: (classes,), or (tokens, classes) without padding.

    The Trainer's own prediction would use its length-grouping sampler, and so return another order.
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
