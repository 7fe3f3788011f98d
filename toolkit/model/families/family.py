"""Properties of a model family."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings

SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "initializer_range",
    "tie_word_embeddings",
)
"""Model settings with the same name in transformers' configurations, in every family."""


@dataclass(frozen=True)
class HubType:
    """One Hugging Face `model_type` of a family."""

    models: str
    """Names of the best-known models, for messages."""
    is_encoder: bool = False
    """Whether attention is bidirectional and the class with the head is one for masked language modeling."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Hugging Face's module names, in a block or in the model, by ours, if they differ. Modules that share one name
    there are its rows, in order."""
    in_files: Mapping[str, str] = field(default_factory=dict)
    """Module names in the class, by those in its files, if transformers renames them when reading and writing."""

    def in_class(self, name: str) -> str:
        """Name in the class of a tensor in its files, to which a wrapper may have added a prefix."""
        for stored, own in self.in_files.items():
            name = re.sub(rf"(^|\.){stored}\.", rf"\1{own}.", name)
        return name


@dataclass(frozen=True)
class HubForm:
    """Transformers class of an exported model, and its configuration."""

    model_type: str
    class_name: str
    config: dict[str, Any]
    """Values besides those that all classes have."""


class Family(ABC):
    """Parts of a family's models, and their Hugging Face format."""

    norm: ClassVar[Literal["rms", "layer"]]
    """RMSNorm, or LayerNorm without a bias."""
    activation: ClassVar[Literal["silu", "gelu"]]
    """Activation of the gate in the feed-forward."""
    has_embedding_norm: ClassVar[bool]
    """Whether embeddings are normed; the first block then has no norm before its attention."""
    transform: ClassVar[Literal["dense", "two products"] | None]
    """Transform of hidden states before the vocabulary projection: linear, GELU and a norm; two linear layers of
    another inner width, each followed by GELU; or none."""
    has_head_bias: ClassVar[bool]
    """Whether the vocabulary projection has a bias."""
    scaled_by_depth: ClassVar[tuple[str, ...]]
    """Suffixes of the names of weights whose initial values are divided by sqrt(2 x layers)."""
    types: ClassVar[Mapping[str, HubType]]
    """Hub types by `model_type`."""

    @abstractmethod
    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """Class and configuration for an exported model with this attention.

        `architecture` is a `model_type` of the family, or None for the usual one. Raise `UserError` if it has no such
        class.
        """

    @abstractmethod
    def settings_of(self, config: Any) -> dict[str, Any]:
        """Fields of `ModelSettings` other than `SHARED_FIELDS`, from a transformers configuration."""

    @abstractmethod
    def unsupported(self, config: Any, raw: Mapping[str, Any]) -> Iterator[str]:
        """Features of its models that ours do not have, from the configuration and the raw `config.json`."""

    @property
    def decoder(self) -> str | None:
        """`model_type` of a decoder class; None if transformers has only encoders."""
        return next((model_type for model_type, hub in self.types.items() if not hub.is_encoder), None)

    def special_ids(self, ids: dict[str, int | None], model_type: str) -> dict[str, int | None]:
        """Special ids of an exported configuration, from `pad_token_id`, `bos_token_id` and `eos_token_id`."""
        return ids

    def notes(self, config: Any) -> Iterator[str]:
        """Notes on keys of a configuration that have no effect."""
        for key in ("attention_dropout", "embedding_dropout", "mlp_dropout"):
            if getattr(config, key, 0):
                yield f"{key}={getattr(config, key)} is left out"
