"""UltraBERT: EuroBERT's block, ModernBERT's two layer types, and two linear layers before the vocabulary projection.

transformers has only an encoder, from 5.20 on. Its files name modules differently from the class; both are read, and
the class's names are written. The window is per side, and the last layer of each group has full attention.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from toolkit.core.errors import UserError
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families.family import Family, HubForm, HubType
from toolkit.model.families.parts import (
    check_width,
    heads_config,
    heads_of,
    unsupported_feed_forward,
    unsupported_windows,
    windows_config,
    windows_of,
)


class UltraBert(Family):
    """UltraBERT's parts."""

    norm = "rms"
    activation = "silu"
    has_embedding_norm = False
    transform = "two products"
    has_head_bias = False
    scaled_by_depth = ()
    types: ClassVar = {
        "ultrabert": HubType(
            "UltraBERT",
            is_encoder=True,
            names={"lm_head": "head.decoder"},
            in_files={"ultrabert": "model", "cls": "head.decoder"},
        )
    }

    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """The encoder's class, the only one."""
        if attention is AttentionKind.CAUSAL:
            raise UserError(
                "--form causal writes a decoder, and transformers has only an encoder of UltraBERT. "
                "Use --form bidirectional."
            )
        check_width(settings, "UltraBERT")
        config = heads_config(settings) | windows_config(settings)
        config |= {
            "sliding_window": settings.local_attention // 2,
            "prediction_head_size": settings.prediction_head_size,
            "classifier_pooling": "mean",
        }
        return HubForm("ultrabert", "UltrabertForMaskedLM", config)

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family`."""
        return {
            **heads_of(config),
            **windows_of(config, "ultrabert"),
            "local_attention": 2 * config.sliding_window,
            "prediction_head_size": config.prediction_head_size,
        }

    def unsupported(self, config: Any, raw: Mapping[str, Any]) -> Iterator[str]:
        """See `Family`."""
        yield from unsupported_feed_forward(config)
        yield from unsupported_windows(config, "ultrabert")
        if len(windows := {window for window in raw.get("attention_windows") or () if window}) > 1:
            yield f"windows that differ from layer to layer (attention_windows: {', '.join(map(str, sorted(windows)))})"
        bases: dict[str, set[Any]] = {}
        listed = () if raw.get("rope_parameters") else raw.get("rope_theta") or ()
        for kind, base in zip(config.layer_types, listed, strict=False):
            bases.setdefault(kind, set()).add(base)
        for kind, differing in bases.items():
            if len(differing) > 1:
                several = ", ".join(f"{base:,}" for base in sorted(differing))
                yield f"bases of angles that differ from layer to layer (rope_theta of {kind}: {several})"
