"""Heads of imports; forms of exports (bidirectional, causal), their architectures and configurations.

Classes and configuration values by family: `toolkit.model.families`.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families import SHARED_FIELDS, HubForm, family_of
from toolkit.model_folder import check_is_known

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from toolkit.checkpoint.manifest import VocabularyEntry


_Word = TypeVar("_Word", bound=StrEnum)


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


class ImportHead(StrEnum):
    """Head of an imported model."""

    OWN = "own"
    """The model's own; a model without one is refused."""
    NEW = "new"
    """Initial values for missing parts of the model's own head."""


class ExportArchitecture(StrEnum):
    """Classes of transformers that an export can target, by `model_type`."""

    EUROBERT = "eurobert"
    """`EuroBertForMaskedLM`, through `AutoModelForMaskedLM`; bidirectional only."""
    LLAMA = "llama"
    """`LlamaForCausalLM`, or its successor `Qwen3ForCausalLM` with QK norms; with `is_causal: false` in the
    configuration for the bidirectional form."""
    MODERNBERT = "modernbert"
    """`ModernBertForMaskedLM`; bidirectional only."""
    MODERNBERT_DECODER = "modernbert-decoder"
    """`ModernBertDecoderForCausalLM`; with `is_causal: false` for the bidirectional form."""
    ULTRABERT = "ultrabert"
    """`UltrabertForMaskedLM`; bidirectional only."""


class ExportDtype(StrEnum):
    """dtype of the exported weights."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def torch_dtype(self) -> "torch.dtype":
        """The torch dtype."""
        import torch

        return torch.float32 if self is ExportDtype.FP32 else torch.bfloat16


DEFAULT_HEAD = ImportHead.OWN
DEFAULT_FORM = ExportForm.BIDIRECTIONAL
DEFAULT_DTYPE = ExportDtype.FP32


def choose(kind: type[_Word], value: str) -> _Word:
    """The enumeration member with this value; raise `UserError` if unknown."""
    try:
        return kind(value)
    except ValueError as error:
        raise UserError(f"unknown value {value!r}. Choose one of: {', '.join(kind)}.") from error


def hub_form(settings: ModelSettings, form: ExportForm, architecture: ExportArchitecture | None) -> HubForm:
    """Class of an exported model; the usual one of its family if `architecture` is None."""
    family = family_of(settings)
    if architecture is not None and architecture not in family.types:
        possible = [str(each) for each in ExportArchitecture if each in family.types]
        raise UserError(
            f"--architecture {architecture} is not for a model of the family {settings.family}. "
            f"Use {' or '.join(possible)}."
        )
    is_encoder = architecture is not None and family.types[architecture].is_encoder
    if is_encoder and form is ExportForm.CAUSAL and family.decoder is not None:
        raise UserError(
            f"--form causal writes a decoder, and --architecture {architecture} is an encoder. "
            f"Use --architecture {family.decoder}, or --form bidirectional."
        )
    return family.hub_form(settings, form.attention, architecture)


def configuration(
    hub: HubForm, form: ExportForm, settings: ModelSettings, *, vocabulary: "VocabularyEntry", dtype: ExportDtype
) -> "PreTrainedConfig":
    """The transformers configuration of an export; raise `UserError` if the installed version lacks its class."""
    from transformers import AutoConfig

    check_is_known(hub.model_type, "the class that this model is exported as")
    shared: dict[str, Any] = {key: getattr(settings, key) for key in SHARED_FIELDS} | {
        "dtype": str(dtype.torch_dtype).removeprefix("torch."),
        "architectures": [hub.class_name],
    }
    ids = {
        "pad_token_id": exported_pad_id(vocabulary),
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
    }
    shared |= family_of(settings).special_ids(ids, hub.model_type)
    if form is ExportForm.BIDIRECTIONAL:
        if vocabulary.mask_id is None:
            raise CheckpointError(
                "the bidirectional form needs a mask token, and the tokenizer of this checkpoint has none. "
                "Use the causal form, or preprocess with --mask-token."
            )
        shared["mask_token_id"] = vocabulary.mask_id
    config: PreTrainedConfig = AutoConfig.for_model(hub.model_type, **shared, **hub.config)
    return config


def exported_pad_id(vocabulary: "VocabularyEntry") -> int | None:
    """The pad id of an export: the model's if that is a special token, else the mask's.

    A tokenizer that names neither pad nor eos has pad id 0 in training, where padding is recognized by position. In an
    exported tokenizer the text of an ordinary token named as pad would be parsed as a special token everywhere.
    """
    return vocabulary.pad_id if vocabulary.pad_id in vocabulary.special_ids else vocabulary.mask_id
