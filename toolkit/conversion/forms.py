"""Export forms (bidirectional, causal), their architectures, and the Hugging Face configuration of each.

One set of tensors serves all: transformers' EuroBERT is Llama with a bidirectional mask, and the names agree. A class
of a decoder computes bidirectional attention where its configuration says `is_causal: false`, which is how servers that
do not know EuroBERT take an encoder. Two options of ours need more: where query, key and value have biases, the classes
have one at the output too, which is written as zeros; and norms of heads are in transformers' Qwen3 alone.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.model.config import ModelSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


class ExportForm(StrEnum):
    """Kind of the exported model."""

    BIDIRECTIONAL = "bidirectional"
    """An encoder."""
    CAUSAL = "causal"
    """A decoder, through `AutoModelForCausalLM`."""

    @property
    def attention(self) -> AttentionKind:
        """The attention kind that the exported class computes."""
        return AttentionKind(self.value)


class ExportArchitecture(StrEnum):
    """The classes of transformers that an exported model is for."""

    EUROBERT = "eurobert"
    """`EuroBertForMaskedLM`, through `AutoModelForMaskedLM`; bidirectional only."""
    LLAMA = "llama"
    """`LlamaForCausalLM`, and with norms of heads its successor `Qwen3ForCausalLM`; with `is_causal: false` in the
    configuration for the bidirectional form."""


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


def exported_class(form: ExportForm, architecture: ExportArchitecture | None, settings: ModelSettings) -> str:
    """Name of the transformers class of an exported model.

    Without an architecture: EuroBERT for the bidirectional form of a model that EuroBERT can be, else Llama.
    """
    if architecture is ExportArchitecture.EUROBERT:
        if form is ExportForm.CAUSAL:
            raise UserError(
                "--form causal writes a decoder, and --architecture eurobert is an encoder. "
                "Use --architecture llama, or --form bidirectional."
            )
        if settings.qk_norm:
            raise UserError(
                "--architecture eurobert has no norms of heads, and this model has them (model.qk_norm). "
                "Use --architecture llama, which writes Qwen3ForCausalLM."
            )
    if settings.qk_norm:
        return "Qwen3ForCausalLM"
    if form is ExportForm.CAUSAL or architecture is ExportArchitecture.LLAMA:
        return "LlamaForCausalLM"
    return "EuroBertForMaskedLM"


def configuration(
    form: ExportForm,
    settings: ModelSettings,
    *,
    vocabulary: Vocabulary,
    dtype: ExportDtype,
    architecture: ExportArchitecture | None = None,
) -> "PreTrainedConfig":
    """The transformers configuration of an exported model, whose class `exported_class` names."""
    from transformers import EuroBertConfig, LlamaConfig, Qwen3Config

    class_name = exported_class(form, architecture, settings)
    if settings.hidden_size % settings.num_attention_heads and class_name != "Qwen3ForCausalLM":
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
        "architectures": [class_name],
    }
    if form is ExportForm.BIDIRECTIONAL:
        if vocabulary.mask_id is None:
            raise CheckpointError(
                "the bidirectional form needs a mask token, and the tokenizer of this checkpoint has none. "
                "Use the causal form, or preprocess with --mask-token."
            )
        shared["mask_token_id"] = vocabulary.mask_id
        if class_name != "EuroBertForMaskedLM":
            # Nothing is generated, so no keys and values are kept for a next token.
            shared |= {"is_causal": False, "use_cache": False}
    if class_name == "EuroBertForMaskedLM":
        return EuroBertConfig(classifier_pooling="mean", **shared)
    return (Qwen3Config if class_name == "Qwen3ForCausalLM" else LlamaConfig)(**shared)


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
