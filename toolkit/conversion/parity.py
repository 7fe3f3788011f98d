"""Does an exported folder compute what the checkpoint computes?

The folder is loaded the way its users load it, through the Auto classes without remote code, and its logits are
compared in fp32 with those of our own encoder, which takes its weights from the checkpoint and not from the folder.
Every sentence is tried alone; the shortest and the longest also as one padded batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.forms import ExportForm
from toolkit.core.errors import CheckpointError, ToolkitError
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder

__all__ = ["SENTENCES", "Parity", "compare_logits", "load_encoder"]

_TOLERANCE = 2e-5
_MOST_TOKENS = 256

SENTENCES = (
    "Call me Ishmael.",
    "It was the best of times, it was the worst of times.",
    "The cat sat on the mat, and the dog lay in front of the fire.",
    "In 1859 Charles Darwin published a book of 502 pages; all 1,250 copies went to the booksellers on the first day.",
    "All happy families are alike; every unhappy family is unhappy in its own way. Everything was in confusion in the "
    "house: the wife had found out that the husband was carrying on with a French girl, who had been a governess in "
    "their family, and she had told her husband that she could not go on living in the same house with him.",
    "Water boils at 100 degrees at sea level, and at about 70 degrees on the highest mountains. The reason is that air "
    "presses less there: a liquid boils when its vapour presses as hard as the air around it. Cooks in the mountains "
    "know this without any physics, for beans that are done in an hour by the sea take two or three up there. A pot "
    "with a tight lid undoes the difference, because the steam that cannot leave presses on the water, so that it "
    "becomes hotter before it boils. Such pots were first shown to learned men in London, who ate what was cooked in "
    "them and found the bones as soft as cheese. The inventor had to add a valve soon afterwards, since more than one "
    "of his pots had ended in the ceiling; valves of that kind later made steam engines safe.",
)
"""Real English of 3 to 147 words."""


@dataclass(frozen=True)
class Parity:
    """How near the logits of two models are."""

    max_difference: float
    """Largest absolute difference."""
    max_logit: float
    """Largest absolute logit of ours."""

    @property
    def tolerance(self) -> float:
        """The largest difference that rounding explains: 2e-5, times the largest logit where that is above 1.

        Measured between kernels that are all correct, in fp32: 1e-6 to 2e-6 of the largest logit in EuroBERT-210m's
        shape, 2e-6 to 7e-6 in that of 28 layers, more with larger weights. Faults move logits by far more.
        """
        return _TOLERANCE * max(1.0, self.max_logit)

    @property
    def is_within_tolerance(self) -> bool:
        """Whether the two compute the same; a difference that is not a number says no."""
        return self.max_difference <= self.tolerance


def load_encoder(checkpoint: Checkpoint, settings: ModelSettings, *, rounded_to: torch.dtype) -> Encoder:
    """Our model with a checkpoint's weights: fp32 numbers, rounded to `rounded_to` first.

    Raises:
        CheckpointError: the checkpoint's parameters are not those of the model its settings describe.
    """
    encoder = Encoder(settings)
    parameters = dict(encoder.named_parameters())
    if missing := parameters.keys() ^ checkpoint.manifest.tensors.keys():
        example = ", ".join(sorted(missing)[:3])
        raise CheckpointError(f"{checkpoint.path} holds other parameters than its settings.model, such as {example}.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            weight = checkpoint.weight(name)
            if weight.shape != parameter.shape:
                raise CheckpointError(
                    f"{checkpoint.path}: {name} has shape {tuple(weight.shape)}; "
                    f"its settings.model describe {tuple(parameter.shape)}."
                )
            parameter.copy_(weight.to(rounded_to))
    return encoder.eval()


def compare_logits(folder: Path, encoder: Encoder, *, form: ExportForm, pad_id: int) -> Parity:
    """Compare the logits of the folder's model with ours over all of `SENTENCES`, up to 256 tokens of each.

    Raises:
        CheckpointError: the tokenizer gives ids that the model does not have.
        ToolkitError: the folder does not load whole.
    """
    tokenizer, model = _load_stock(folder, form)
    vocab_size, longest = encoder.lm_head.weight.shape[0], min(_MOST_TOKENS, encoder.settings.max_position_embeddings)
    encoded = [tokenizer(sentence)["input_ids"][:longest] for sentence in SENTENCES]
    sentences = sorted((torch.tensor(ids, dtype=torch.int64) for ids in encoded if ids), key=len)
    largest_id = max((int(ids.max()) for ids in sentences), default=None)
    if largest_id is None or largest_id >= vocab_size:
        raise CheckpointError(f"{folder}: the tokenizer gives id {largest_id}, the model has {vocab_size} entries.")
    with torch.no_grad():
        ours = [encoder.logits(ids[None], torch.ones_like(ids[None]), form.attention) for ids in sentences]
        alone = [model(input_ids=ids[None]).logits[0] for ids in sentences]
        pair = [sentences[0], sentences[-1]]
        input_ids_BS = torch.nn.utils.rnn.pad_sequence(pair, batch_first=True, padding_value=pad_id)
        lengths_B = torch.tensor([len(ids) for ids in pair])
        mask_BS = (torch.arange(input_ids_BS.shape[1]) < lengths_B[:, None]).long()
        batch_BSV = model(input_ids=input_ids_BS, attention_mask=mask_BS).logits
    theirs = torch.cat([*alone, batch_BSV[0, : len(pair[0])], batch_BSV[1]])
    expected = torch.cat([*ours, ours[0], ours[-1]])
    return Parity(
        max_difference=float((theirs - expected).abs().max()),
        max_logit=float(expected.abs().max()),
    )


def _load_stock(folder: Path, form: ExportForm) -> tuple[Any, Any]:
    """The tokenizer and the model in fp32, as a user of transformers gets them."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    # Any: the annotations of the Auto classes know nothing of `output_loading_info`.
    auto: Any = AutoModelForMaskedLM if form is ExportForm.BIDIRECTIONAL else AutoModelForCausalLM
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, **local)
            model, report = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **local)
    # A loader of another library may fail in any way; whichever it is, the folder is not what was promised.
    except Exception as error:
        raise ToolkitError(f"transformers does not load {folder}: {error}") from error
    if problems := {key: sorted(map(str, names)) for key, names in report.items() if names}:
        raise ToolkitError(f"transformers does not load {folder} whole: {problems}.")
    return tokenizer, model.eval()


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging

    settings: Any = logging
    was_enabled = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            settings.enable_progress_bar()
