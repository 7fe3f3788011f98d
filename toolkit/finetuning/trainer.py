"""Training through transformers' Trainer, and prediction in file order."""

import os
import tempfile

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from toolkit.core.console import Progress, progress
from toolkit.core.errors import NonFiniteError
from toolkit.finetuning.inputs import EncodedExamples
from toolkit.finetuning.run import FinetuningSettings


class _ShowProgress(TrainerCallback):
    """Moves the bar after each update."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._bar.update(state.global_step)


def train_classifier(
    classifier: nn.Module, examples: EncodedExamples, *, collator: DataCollatorWithPadding, settings: FinetuningSettings
) -> None:
    """Fine-tune in place: AdamW, warm-up, linear to 0, batches of like length; bf16 autocast on CUDA, fp32 weights.

    Raises:
        NonFiniteError: the weights have diverged.
    """
    if not torch.cuda.is_available():
        # The Trainer imports DeepSpeed, which warns where it finds no GPU, unless it is told.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with (
        tempfile.TemporaryDirectory() as scratch,
        progress("fine-tuning", total=settings.steps, unit="steps") as bar,
    ):
        trainer = Trainer(
            model=classifier,
            args=_arguments(settings, scratch),
            train_dataset=examples,
            data_collator=collator,
            compute_loss_func=_loss,
            callbacks=[_ShowProgress(bar)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    if not all(bool(torch.isfinite(weight).all()) for weight in classifier.parameters()):
        raise NonFiniteError(
            f"the weights have diverged: they are no longer finite after {settings.steps} steps "
            f"at learning rate {settings.learning_rate:g}. Try a smaller one."
        )


def _arguments(settings: FinetuningSettings, scratch: str) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=scratch,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_rows,
        train_sampling_strategy="group_by_length",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=round(settings.warmup_fraction * settings.steps),
        optim="adamw_torch_fused",
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        adam_epsilon=settings.adam_eps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.grad_clip,
        seed=settings.seed,
        data_seed=settings.seed,
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # On several GPUs the Trainer replicates the model and multiplies the batch: the result would depend on the machine.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def _loss(outputs: SequenceClassifierOutput, labels: torch.Tensor, num_items_in_batch: object = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs["logits"].float(), labels)


@torch.no_grad()
def predict(
    classifier: nn.Module, examples: EncodedExamples, *, collator: DataCollatorWithPadding, batch_rows: int
) -> npt.NDArray[np.int64]:
    """The class number of each example, (examples,), in their own order.

    The Trainer's own prediction would follow its length-grouping sampler, and so answer in another order.
    """
    classifier.eval()
    device = next(classifier.parameters()).device
    by_length = sorted(range(len(examples)), key=lambda row: len(examples.rows[row]["input_ids"]))
    classes = np.empty(len(examples), dtype=np.int64)
    for start in range(0, len(by_length), batch_rows):
        chosen = by_length[start : start + batch_rows]
        batch = collator([examples[row] for row in chosen])
        del batch["labels"]
        logits = classifier(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        classes[chosen] = logits.float().argmax(dim=-1).cpu().numpy()
    return classes
