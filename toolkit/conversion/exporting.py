"""From a checkpoint to a Hugging Face folder that loads with stock transformers.

The folder is made beside its final place under a hidden name, checked there, and renamed: a failure leaves nothing.
"""

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError

from toolkit.checkpoint.durable import sync
from toolkit.checkpoint.read import Checkpoint, open_checkpoint
from toolkit.conversion.card import model_card
from toolkit.conversion.forms import DEFAULT_DTYPE, DEFAULT_FORM, ExportDtype, ExportForm, configuration
from toolkit.conversion.parity import compare_logits, load_encoder
from toolkit.core.errors import CheckpointError, ToolkitError, UserError
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder

__all__ = ["ConversionReport", "to_hf"]

_LARGEST_FILE = "5GB"
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did."""

    checkpoint: Path
    """The checkpoint folder that was converted."""
    out: Path
    """The folder that was written."""
    step: int
    """Updates behind the weights."""
    form: ExportForm
    """What the exported model is."""
    dtype: ExportDtype
    """Numbers of the exported weights."""
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
    dtype: ExportDtype | str = DEFAULT_DTYPE,
) -> ConversionReport:
    """Write a checkpoint as a Hugging Face folder, and check the written folder's logits against ours.

    Args:
        checkpoint: a checkpoint folder, or a run folder (its newest intact checkpoint).
        out: must not exist, or be an empty folder.
        form: `"bidirectional"` (EuroBertForMaskedLM) or `"causal"` (LlamaForCausalLM).
        dtype: `"fp32"` or `"bf16"`; bf16 weights are rounded, and checked against ours rounded alike.

    Raises:
        UserError: `out` holds something or cannot be written, or `form` or `dtype` is unknown.
        CheckpointError: the checkpoint is missing or damaged, or does not fit the form.
        ToolkitError: the written model computes something else. Nothing is left at `out`.
    """
    out, form, dtype = Path(out), _member(ExportForm, form), _member(ExportDtype, dtype)
    _refuse_occupied(out)
    source = open_checkpoint(checkpoint)
    settings = _model_settings(source)
    with _built_beside(out) as folder:
        encoder = load_encoder(source, settings, rounded_to=dtype.torch_dtype)
        _write_model(folder, encoder, source=source, form=form, dtype=dtype)
        _write_tokenizer(folder, source, longest=settings.max_position_embeddings)
        (folder / "README.md").write_text(model_card(source.manifest, form, name=out.name), encoding="utf-8")
        parity = compare_logits(folder, encoder, form=form, pad_id=source.manifest.vocabulary.pad_id)
        if not parity.is_within_tolerance:
            raise ToolkitError(
                f"converting {source.path} to {form} {dtype}: the logits of the written model differ from ours by "
                f"{parity.max_difference:.2e}, more than {parity.tolerance:.1e} (the largest logit is "
                f"{parity.max_logit:.3g}). Nothing was written to {out}. This is a bug."
            )
        files = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    return ConversionReport(
        checkpoint=source.path,
        out=out,
        step=source.manifest.step,
        form=form,
        dtype=dtype,
        max_difference=parity.max_difference,
        max_logit=parity.max_logit,
        files=files,
    )


def _write_model(folder: Path, encoder: Encoder, *, source: Checkpoint, form: ExportForm, dtype: ExportDtype) -> None:
    from huggingface_hub import save_torch_state_dict
    from transformers import GenerationConfig

    config = configuration(form, encoder.settings, vocabulary=source.manifest.vocabulary.vocabulary(), dtype=dtype)
    config.save_pretrained(folder)
    # Readers of Llama folders other than transformers 5 know the base of the angles by its old place only.
    _update_json(folder / "config.json", {"rope_theta": encoder.settings.rope_theta})
    if form is ExportForm.CAUSAL:
        GenerationConfig.from_model_config(config).save_pretrained(folder)
    # `named_parameters` lists a tied head once, under the embedding's name, which is where transformers expects it.
    weights = {name: parameter.detach().to(dtype.torch_dtype) for name, parameter in encoder.named_parameters()}
    save_torch_state_dict(weights, folder, filename_pattern="model{suffix}.safetensors", max_shard_size=_LARGEST_FILE)


def _write_tokenizer(folder: Path, source: Checkpoint, *, longest: int) -> None:
    """Copy the tokenizer, and tell its settings what the model is: Llama and EuroBERT take no token types.

    Where the tokenizer names no pad token, the model's pad id is one of its other tokens; that one is named, since a
    batch could not be padded otherwise.
    """
    shutil.copytree(source.tokenizer_folder, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    changes: dict[str, object] = {
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if _read_json(path).get("pad_token") is None:
        import tokenizers

        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        changes["pad_token"] = backend.id_to_token(source.manifest.vocabulary.pad_id)
    _update_json(path, changes)


def _update_json(path: Path, changes: dict[str, object]) -> None:
    path.write_text(json.dumps(_read_json(path) | changes, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def _model_settings(source: Checkpoint) -> ModelSettings:
    model = source.manifest.settings.get("model")
    try:
        settings = ModelSettings.model_validate(model)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("settings", "model", *first["loc"]))
        raise CheckpointError(
            f"{source.path}/manifest.json does not describe a model: {place}: {first['msg']}."
        ) from error
    if settings.vocab_size is None:
        raise CheckpointError(f"{source.path}/manifest.json does not say settings.model.vocab_size.")
    return settings


def _member(kind: type[_Word], value: str) -> _Word:
    try:
        return kind(value)
    except ValueError as error:
        raise UserError(f"{value!r} is none of {', '.join(kind)}.") from error


def _refuse_occupied(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already. Name a new folder, or remove it first.")


@contextmanager
def _built_beside(out: Path) -> Iterator[Path]:
    """A hidden folder that becomes `out` when the block succeeds, and is removed when it does not."""
    folder = out.absolute().parent / f".converting-{out.name}-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in (*folder.rglob("*"), folder):
            sync(path)
        folder.rename(out)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{out} cannot be written: {reason}. Free space there, or name another folder.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
