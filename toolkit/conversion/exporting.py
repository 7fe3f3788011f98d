"""Export of a checkpoint to a Hugging Face folder that loads with stock transformers.

The folder is written next to its destination under a hidden name, checked there, and renamed: a failure leaves nothing.
Weights are converted one tensor at a time, so that a model may be larger than memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from toolkit.checkpoint.durable import stream_safetensors
from toolkit.checkpoint.read import Checkpoint, open_checkpoint
from toolkit.checkpoint.write import split_into_files
from toolkit.conversion.card import has_shifted_head, model_card
from toolkit.conversion.exported_tokenizer import export_tokenizer
from toolkit.conversion.folders import check_output, output_directory
from toolkit.conversion.forms import (
    DEFAULT_DTYPE,
    DEFAULT_FORM,
    ExportArchitecture,
    ExportDtype,
    ExportForm,
    choose,
    configuration,
    exported_pad_id,
    hub_form,
)
from toolkit.conversion.parity import NativeModel, Parity, compare_logits, open_native, open_stock
from toolkit.conversion.weights import BODY, HubTensors, settings_of
from toolkit.core.errors import ToolkitError, UserError
from toolkit.model.config import ModelSettings
from toolkit.model.families import hub_type
from toolkit.model_folder import CARD_FILE, Library, Modules, add_old_keys, write_json, write_modules

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LARGEST_FILE = 5_000_000_000


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion."""

    checkpoint: Path
    """The checkpoint folder that was converted."""
    out: Path
    """The folder that was written."""
    step: int
    """Number of updates of the weights."""
    form: ExportForm
    """Form of the exported model."""
    dtype: ExportDtype
    """dtype of the exported weights."""
    architecture: str
    """The transformers class that the folder is for."""
    notes: tuple[str, ...]
    """Notes for users of the folder, one sentence each."""
    max_difference: float
    """Largest absolute difference between a logit of the written folder and ours."""
    max_logit: float
    """Largest absolute logit of ours."""
    files: tuple[str, ...]
    """Files written, relative to `out`, sorted."""


def to_hf(
    checkpoint: Path | str,
    out: Path | str,
    *,
    form: ExportForm | str = DEFAULT_FORM,
    architecture: ExportArchitecture | str | None = None,
    dtype: ExportDtype | str = DEFAULT_DTYPE,
    sentence_transformers: bool = False,
) -> ConversionReport:
    """Write a checkpoint as a Hugging Face folder, and check the written folder's logits against ours.

    Args:
        checkpoint: a checkpoint folder, or a run folder (its newest intact checkpoint).
        out: must not exist, or be an empty folder.
        form: `"bidirectional"` or `"causal"`.
        architecture: for the Llama family, `"eurobert"` (EuroBertForMaskedLM) or `"llama"` (LlamaForCausalLM; with QK
            norms, Qwen3ForCausalLM); for ModernBERT, `"modernbert"` (ModernBertForMaskedLM) or
            `"modernbert-decoder"` (ModernBertDecoderForCausalLM); for UltraBERT, `"ultrabert"` (UltrabertForMaskedLM).
            A bidirectional model in a decoder class gets `is_causal: false` in its configuration. None: the family's
            first for an encoder without QK norms, else its second.
        dtype: `"fp32"` or `"bf16"`; bf16 weights are rounded, and checked against ours rounded the same way.
        sentence_transformers: also write the modules with which sentence-transformers loads the folder and applies
            mean pooling, and leave out the head's own parameters, which it does not use; bidirectional form only.

    Raises:
        UserError: modules are requested for a causal model, the architecture does not support the form or a part of
            the model, `out` is not empty or cannot be written, or `form`, `architecture` or `dtype` is unknown.
        CheckpointError: the checkpoint is missing or damaged, or does not fit the form.
        ToolkitError: the written model's logits differ. Nothing is left at `out`.
    """
    out, form, dtype = Path(out), choose(ExportForm, form), choose(ExportDtype, dtype)
    architecture = None if architecture is None else choose(ExportArchitecture, architecture)
    if sentence_transformers and form is ExportForm.CAUSAL:
        raise UserError(
            "--sentence-transformers adds modules to an encoder, and --form causal writes a decoder. Leave one of "
            "the two out."
        )
    library: Library = "sentence-transformers" if sentence_transformers else "transformers"
    check_output(out)
    source = open_checkpoint(checkpoint)
    settings, vocabulary = settings_of(source), source.manifest.vocabulary
    hub = hub_form(settings, form, architecture)
    config = configuration(hub, form, settings, vocabulary=vocabulary, dtype=dtype)
    tensors = HubTensors(settings, hub_type(hub.model_type))
    # A tied head's matrix is the embedding: only its other parameters, if any, are left out.
    left_out = frozenset(name for name in tensors.shapes if sentence_transformers and not name.startswith(BODY))
    with output_directory(out) as folder:
        native = open_native(source, settings, rounded_to=dtype.torch_dtype)
        _write_config(folder, config, form)
        _write_weights(folder, source, tensors, dtype, left_out=left_out)
        longest = settings.max_position_embeddings
        differences = export_tokenizer(folder, source, form=form, longest=longest, library=library)
        if sentence_transformers:
            row_length = source.manifest.table("data").get("sequence_length")
            longest = min(row_length, longest) if isinstance(row_length, int) else longest
            write_modules(folder, Modules(longest), width=settings.hidden_size)
        named = {"name": out.name, "architecture": hub.class_name}
        card = model_card(source.manifest, form, **named, library=library, left_out=left_out)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        parity = _compare(folder, native, form, tensors, pad_id=vocabulary.pad_id, left_out=left_out)
        parity.check(f"converting {source.path} to {form} {dtype}", out)
        files = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    return ConversionReport(
        checkpoint=source.path,
        out=out,
        step=source.manifest.step,
        form=form,
        dtype=dtype,
        architecture=hub.class_name,
        notes=(*_notes(form, hub.class_name, settings, source, left_out=left_out), *differences),
        max_difference=parity.max_difference,
        max_logit=parity.max_logit,
        files=files,
    )


def _compare(
    folder: Path,
    native: NativeModel,
    form: ExportForm,
    tensors: HubTensors,
    *,
    pad_id: int,
    left_out: frozenset[str],
) -> Parity:
    """Compare the written folder with the checkpoint; it has to load without missing or unexpected tensors.

    If the head was left out, ours is used: only the encoder is compared then. A decoder class is bidirectional only by
    its configuration, which each attention implementation reads at a different place: two of them are tried, and the
    one with the larger difference is returned.
    """
    try:
        stock = open_stock(folder, tokenizer=folder, name="the exported model")
    except UserError as error:
        raise ToolkitError(str(error)) from error
    if left_out and stock.problems == {"missing_keys": sorted(left_out)}:
        written = stock.read

        def read(name: str, dtype: torch.dtype) -> Tensor:
            return native.read(*tensors.parts[name]).to(dtype) if name in left_out else written(name, dtype)

        stock = replace(stock, problems={}, read=read)
    if stock.problems:
        raise ToolkitError(f"transformers does not load the exported model whole: {stock.problems}.")
    found, config = [], stock.model.config
    # ModernBERT's eager decoder fails without a mask, as for one text shorter than the window (transformers 5.23).
    has_two_kinds = getattr(config, "is_causal", True) is False and config.model_type != "modernbert-decoder"
    for implementation in ("sdpa", "eager") if has_two_kinds else ("sdpa",):
        stock.model.set_attn_implementation(implementation)
        found.append(compare_logits(stock, native, attention=form.attention, pad_id=pad_id))
    return next((each for each in found if not each.is_within_tolerance), max(found, key=attrgetter("max_difference")))


def _write_config(folder: Path, config: "PreTrainedConfig", form: ExportForm) -> None:
    from transformers import GenerationConfig

    config.save_pretrained(folder)
    add_old_keys(folder)
    if form is ExportForm.CAUSAL:
        GenerationConfig.from_model_config(config).save_pretrained(folder)


def _write_weights(
    folder: Path, source: Checkpoint, tensors: HubTensors, dtype: ExportDtype, *, left_out: frozenset[str]
) -> None:
    """Write a folder's safetensors, one tensor at a time; a tied head has none of its own, as transformers expects."""
    shapes = {name: shape for name, shape in tensors.shapes.items() if name not in left_out}
    # All exported classes also have an attention output bias if query, key and value have one.
    outputs = [name for name in shapes if name.endswith("o_proj.weight")] if tensors.settings.qkv_bias else []
    zeros = {name.replace("weight", "bias"): shapes[name][:1] for name in outputs}
    shapes |= zeros

    def read(name: str) -> Iterator[Tensor]:
        parts = [[torch.zeros(zeros[name])]] if name in zeros else map(source.rows, tensors.parts[name])
        for block in chain.from_iterable(parts):
            yield block.to(dtype.torch_dtype)

    itemsize = dtype.torch_dtype.itemsize
    sizes = {name: prod(shape) * itemsize for name, shape in shapes.items()}
    parts = split_into_files(sizes, _LARGEST_FILE)
    files: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        suffix = f"-{number:05d}-of-{len(parts):05d}" if len(parts) > 1 else ""
        file = f"model{suffix}.safetensors"
        stream_safetensors(folder / file, {name: shapes[name] for name in names}, read, dtype=dtype.torch_dtype)
        files |= dict.fromkeys(names, file)
    if len(parts) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(files.items()))}
        write_json(folder / "model.safetensors.index.json", index)


def _notes(
    form: ExportForm, class_name: str, settings: ModelSettings, source: Checkpoint, *, left_out: frozenset[str]
) -> tuple[str, ...]:
    notes, vocabulary = [], source.manifest.vocabulary
    if left_out:
        notes.append("the head is left out; fill-mask needs an export without --sentence-transformers")
    if (pad_id := exported_pad_id(vocabulary)) != vocabulary.pad_id:
        named = "no token is" if pad_id is None else "the mask token is"
        notes.append(
            f"the tokenizer names neither pad nor eos, and the model's pad id {vocabulary.pad_id} is an ordinary "
            f"token: {named} named as pad instead"
        )
    if form is ExportForm.BIDIRECTIONAL and not class_name.endswith("ForMaskedLM"):
        why = "transformers has no masked-LM class with norms of heads: " if settings.qk_norm else ""
        head = "" if left_out else "the head through AutoModelForCausalLM and "
        notes.append(
            f"{why}load {head}the encoder through AutoModel; is_causal: false in config.json makes attention "
            "bidirectional, from transformers 5.2 on"
        )
    if has_shifted_head(source.manifest, form, left_out=left_out):
        notes.append(
            "trained last by mntp: logits at a position are those of the token after it, so the fill-mask pipeline is "
            "off by one; the model card shows how to read them"
        )
    if settings.qkv_bias:
        notes.append("attention_bias: true; the class has biases at the output of attention too, which are zero")
    return tuple(notes)
