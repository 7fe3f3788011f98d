"""Properties of a family of models."""

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
"""Settings of a model that configurations of transformers have by the same name, in every family."""


@dataclass(frozen=True)
class HubType:
    """Models of a family as Hugging Face knows them: one `model_type`."""

    models: str
    """Names of the best known, for messages."""
    is_encoder: bool = False
    """Attention is bidirectional, and the class that has the head one for masked language modeling."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Modules, of a block or of the model, by their names here, where they have others there. Several that have one
    name there are its rows, in order."""
    in_files: Mapping[str, str] = field(default_factory=dict)
    """Modules of the class by their names in its files, where transformers renames them as it reads and writes."""

    def in_class(self, name: str) -> str:
        """Name in the class of a tensor of its files, which a wrapper may have put something in front of."""
        for stored, own in self.in_files.items():
            name = re.sub(rf"(^|\.){stored}\.", rf"\1{own}.", name)
        return name


@dataclass(frozen=True)
class HubForm:
    """Class of transformers for an exported model, and its configuration."""

    model_type: str
    class_name: str
    config: dict[str, Any]
    """Values beyond those that all classes have."""


class Family(ABC):
    """Parts of the models of a family, and how Hugging Face writes them."""

    norm: ClassVar[Literal["rms", "layer"]]
    """RMSNorm, or LayerNorm without a bias."""
    activation: ClassVar[Literal["silu", "gelu"]]
    """Activation of the gate in the feed-forward."""
    has_embedding_norm: ClassVar[bool]
    """Embeddings are normed; the first block then has no norm before its attention."""
    transform: ClassVar[Literal["dense", "two products"] | None]
    """What hidden states pass before the head's matrix: a product, GELU and a norm; two products through another width,
    with GELU after each; or nothing."""
    has_head_bias: ClassVar[bool]
    """The head's matrix adds a bias."""
    scaled_by_depth: ClassVar[tuple[str, ...]]
    """Endings of the names of weights whose initial values are divided by sqrt(2 x layers)."""
    types: ClassVar[Mapping[str, HubType]]
    """Hub types by `model_type`."""

    @abstractmethod
    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """The class for an exported model that computes this attention.

        `architecture` is a `model_type` of the family, or None, for the usual one. A UserError where it has no such
        class.
        """

    @abstractmethod
    def settings_of(self, config: Any) -> dict[str, Any]:
        """Fields of `ModelSettings`, beyond those with the same name there, from a configuration of transformers."""

    @abstractmethod
    def unsupported(self, config: Any, raw: Mapping[str, Any]) -> Iterator[str]:
        """Parts that its models can have and ours have not, from the configuration and `config.json` itself."""

    @property
    def decoder(self) -> str | None:
        """`model_type` of a decoder's class; None where transformers has encoders alone."""
        return next((model_type for model_type, hub in self.types.items() if not hub.is_encoder), None)

    def special_ids(self, ids: dict[str, int | None], model_type: str) -> dict[str, int | None]:
        """Special ids of an exported configuration, from `pad_token_id`, `bos_token_id` and `eos_token_id`."""
        return ids

    def notes(self, config: Any) -> Iterator[str]:
        """Notes on keys of a configuration that have no effect."""
        for key in ("attention_dropout", "embedding_dropout", "mlp_dropout"):
            if getattr(config, key, 0):
                yield f"{key}={getattr(config, key)} is left out"
