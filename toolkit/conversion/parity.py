"""Does an exported folder compute what the checkpoint computes?

The folder is loaded the way its users load it, through the Auto classes without remote code, and its logits are
compared in fp32 with those of our own encoder, which takes its weights from the checkpoint and not from the folder.
Every sentence is tried alone and inside a padded batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.read import Checkpoint
from toolkit.conversion.forms import ExportForm
from toolkit.core.errors import CheckpointError, ToolkitError
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder

__all__ = ["SENTENCES", "largest_difference", "load_encoder"]

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
"""Real English of 4 to 150 words."""


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


def largest_difference(folder: Path, encoder: Encoder, *, form: ExportForm, pad_id: int) -> float:
    """Largest absolute difference between a logit of the folder's model and ours, over all of `SENTENCES`.

    Raises:
        CheckpointError: the tokenizer gives ids that the model does not have.
        ToolkitError: the folder does not load whole.
    """
    tokenizer, model = _load_stock(folder, form)
    vocab_size, longest = encoder.lm_head.weight.shape[0], encoder.settings.max_position_embeddings
    encoded = [tokenizer(sentence)["input_ids"][:longest] for sentence in SENTENCES]
    sentences = [torch.tensor(ids, dtype=torch.int64) for ids in encoded if ids]
    largest_id = max((int(ids.max()) for ids in sentences), default=None)
    if largest_id is None or largest_id >= vocab_size:
        raise CheckpointError(f"{folder}: the tokenizer gives id {largest_id}, the model has {vocab_size} entries.")
    with torch.no_grad():
        expected = [
            encoder.logits(ids[None], torch.ones(1, len(ids), dtype=torch.int64), form.attention) for ids in sentences
        ]
        alone = [model(input_ids=ids[None]).logits[0] for ids in sentences]
        input_ids_BS = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=pad_id)
        lengths_B = torch.tensor([len(ids) for ids in sentences])
        mask_BS = (torch.arange(input_ids_BS.shape[1]) < lengths_B[:, None]).long()
        batch_BSV = model(input_ids=input_ids_BS, attention_mask=mask_BS).logits
    padded = [logits_SV[: len(ids)] for logits_SV, ids in zip(batch_BSV, sentences, strict=True)]
    found, wanted = torch.cat([*alone, *padded]), torch.cat([*expected, *expected])
    if not bool(found.isfinite().all()):
        raise ToolkitError(f"the model in {folder} gives logits that are not finite.")
    return float((found - wanted).abs().max())


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
