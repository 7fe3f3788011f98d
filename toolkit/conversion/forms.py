"""The forms in which a checkpoint leaves the toolkit, and the Hugging Face configuration of each.

One set of tensors serves both: transformers' EuroBERT is Llama with a bidirectional mask, and the names agree.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from toolkit.core.errors import CheckpointError
from toolkit.core.words import AttentionKind, Vocabulary
from toolkit.model.config import ModelSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

__all__ = ["DEFAULT_DTYPE", "DEFAULT_FORM", "ExportDtype", "ExportForm", "configuration"]


class ExportForm(StrEnum):
    """What the exported model is."""

    BIDIRECTIONAL = "bidirectional"
    """An encoder: `EuroBertForMaskedLM`, through `AutoModelForMaskedLM`."""
    CAUSAL = "causal"
    """A decoder: `LlamaForCausalLM`, through `AutoModelForCausalLM`."""

    @property
    def attention(self) -> AttentionKind:
        """The attention kind that the exported class computes."""
        return AttentionKind(self.value)


class ExportDtype(StrEnum):
    """Numbers of the exported weights."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def torch_dtype(self) -> "torch.dtype":
        """The same in torch's words."""
        import torch

        return torch.float32 if self is ExportDtype.FP32 else torch.bfloat16


DEFAULT_FORM = ExportForm.BIDIRECTIONAL
DEFAULT_DTYPE = ExportDtype.FP32


def configuration(
    form: ExportForm, settings: ModelSettings, *, vocabulary: Vocabulary, dtype: ExportDtype
) -> "PreTrainedConfig":
    """The transformers configuration of an exported model.

    Raises:
        CheckpointError: the encoder form is asked of a model whose tokenizer has no mask token.
    """
    from transformers import EuroBertConfig, LlamaConfig

    shared: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.hidden_size,
        "intermediate_size": settings.intermediate_size,
        "num_hidden_layers": settings.num_hidden_layers,
        "num_attention_heads": settings.num_attention_heads,
        "num_key_value_heads": settings.key_value_heads,
        "head_dim": settings.head_size,
        "max_position_embeddings": settings.max_position_embeddings,
        "initializer_range": settings.initializer_range,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rope_theta},
        "tie_word_embeddings": settings.tie_word_embeddings,
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "dtype": str(dtype.torch_dtype).removeprefix("torch."),
    }
    if form is ExportForm.CAUSAL:
        return LlamaConfig(architectures=["LlamaForCausalLM"], **shared)
    if vocabulary.mask_id is None:
        raise CheckpointError(
            "The bidirectional form needs a mask token, and the tokenizer of this checkpoint has none. "
            "Use the causal form, or preprocess with --mask-token."
        )
    return EuroBertConfig(
        architectures=["EuroBertForMaskedLM"], mask_token_id=vocabulary.mask_id, classifier_pooling="mean", **shared
    )
