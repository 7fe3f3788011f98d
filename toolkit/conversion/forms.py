"""Export forms (bidirectional, causal), and the Hugging Face configuration of each.

One set of tensors serves both: transformers' EuroBERT is Llama with a bidirectional mask, and the names agree. Two
options of ours need more: where query, key and value have biases, both classes have one at the output too, which is
written as zeros; and norms of heads are in transformers' Qwen3 alone, which has no class with a masked-LM head but
computes bidirectional attention where its configuration says `is_causal: false`.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from toolkit.core.errors import CheckpointError
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.model.config import ModelSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


class ExportForm(StrEnum):
    """What the exported model is."""

    BIDIRECTIONAL = "bidirectional"
    """An encoder: `EuroBertForMaskedLM`, through `AutoModelForMaskedLM`; with norms of heads, `Qwen3ForCausalLM`."""
    CAUSAL = "causal"
    """A decoder, through `AutoModelForCausalLM`: `LlamaForCausalLM`; with norms of heads, `Qwen3ForCausalLM`."""

    @property
    def attention(self) -> AttentionKind:
        """The attention kind that the exported class computes."""
        return AttentionKind(self.value)


class ExportDtype(StrEnum):
    """dtype of the exported weights."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def torch_dtype(self) -> "torch.dtype":
        """The torch dtype."""
        import torch

        return torch.float32 if self is ExportDtype.FP32 else torch.bfloat16


DEFAULT_FORM = ExportForm.BIDIRECTIONAL
DEFAULT_DTYPE = ExportDtype.FP32


def configuration(
    form: ExportForm, settings: ModelSettings, *, vocabulary: Vocabulary, dtype: ExportDtype
) -> "PreTrainedConfig":
    """The transformers configuration of an exported model.

    Raises:
        CheckpointError: the encoder form is asked of a model whose tokenizer has no mask token, or no class has its
            shape.
    """
    from transformers import EuroBertConfig, LlamaConfig, Qwen3Config

    if settings.hidden_size % settings.num_attention_heads and not settings.qk_norm:
        raise CheckpointError(
            f"transformers' Llama and EuroBERT ask that hidden_size={settings.hidden_size} is a multiple of "
            f"num_attention_heads={settings.num_attention_heads}, even where head_dim is given. "
            "This model cannot be exported; train one of such a width."
        )
    shared: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.hidden_size,
        "intermediate_size": settings.intermediate_size,
        "num_hidden_layers": settings.num_hidden_layers,
        "num_attention_heads": settings.num_attention_heads,
        "num_key_value_heads": settings.key_value_heads,
        "head_dim": settings.head_size,
        "attention_bias": settings.qkv_bias,
        "max_position_embeddings": settings.max_position_embeddings,
        "initializer_range": settings.initializer_range,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_parameters": rope_scaling(settings) | {"rope_theta": settings.rope_theta},
        "tie_word_embeddings": settings.tie_word_embeddings,
        "pad_token_id": exported_pad_id(vocabulary),
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "dtype": str(dtype.torch_dtype).removeprefix("torch."),
    }
    if form is ExportForm.BIDIRECTIONAL:
        if vocabulary.mask_id is None:
            raise CheckpointError(
                "the bidirectional form needs a mask token, and the tokenizer of this checkpoint has none. "
                "Use the causal form, or preprocess with --mask-token."
            )
        shared["mask_token_id"] = vocabulary.mask_id
    architectures = [exported_class(form, settings)]
    if settings.qk_norm:
        if form is ExportForm.BIDIRECTIONAL:
            shared["is_causal"] = False
        return Qwen3Config(architectures=architectures, **shared)
    if form is ExportForm.CAUSAL:
        return LlamaConfig(architectures=architectures, **shared)
    return EuroBertConfig(architectures=architectures, classifier_pooling="mean", **shared)


def exported_pad_id(vocabulary: Vocabulary) -> int | None:
    """The pad id of an export: the model's if that is a special token, else the mask's.

    A tokenizer that names neither pad nor eos has pad id 0 in training, where positions tell padding apart. In an
    exported tokenizer the text of an ordinary token, named as pad, would be parsed as a special token everywhere.
    """
    return vocabulary.pad_id if vocabulary.pad_id in vocabulary.special_ids else vocabulary.mask_id


def rope_scaling(settings: ModelSettings) -> dict[str, Any]:
    """The stretch of the angles in transformers' words, with the keys that its type has; it warns of others."""
    scaling = settings.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return scaling.model_dump(include={"rope_type", "factor"} if scaling.rope_type == "linear" else None)


def exported_class(form: ExportForm, settings: ModelSettings) -> str:
    """Name of the transformers class of an exported model."""
    if settings.qk_norm:
        return "Qwen3ForCausalLM"
    return "LlamaForCausalLM" if form is ExportForm.CAUSAL else "EuroBertForMaskedLM"
