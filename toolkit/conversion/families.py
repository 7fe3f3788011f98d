"""Translation of a Hugging Face config into our model settings, or into a list of unsupported features.

transformers fills in the defaults of each family; keys that it does not know are looked up in `config.json` itself, so
that an unsupported feature is rejected in every family's file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.checkpoint.folders import holds_checkpoints
from toolkit.core.errors import UserError
from toolkit.core.settings import explain
from toolkit.core.text import json_kind, quoted
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families import HUB_TYPES, SHARED_FIELDS, hub_type
from toolkit.model_folder import as_native, check_not_adapter, read_config

_MIXTURE_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
_SOFTCAP_KEYS = ("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "attn_logit_soft_cap")
_SCALES = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale")
_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_REMEDY = "Download the model again, or repair the file."


@dataclass(frozen=True)
class Described:
    """A model as described by its configuration."""

    family: str
    """Its `model_type`."""
    settings: ModelSettings
    """Its shape as our settings; `vocab_size` is the model's, including padding."""
    attention: AttentionKind
    """Attention kind of the unmodified model."""
    bos_id: int | None
    """From `config.json` itself; None if absent, even if transformers has a default."""
    eos_ids: tuple[int, ...]
    """The same; several ids if any of them ends a text."""
    generation_ends: tuple[int, ...]
    """Ids that end a text in `generation_config.json`."""
    mask_id: int | None
    """From `config.json`; None if absent."""
    task_class: str | None
    """The class that `config.json` names, if its head is for a task; else None."""
    notes: tuple[str, ...]
    """Notes on keys that were read and have no effect."""


def describe(folder: Path, name: str) -> Described:
    """Read `config.json`; raise `UserError` with all parts that we do not support, if any."""
    stored = _read(folder, name)
    raw = as_native(stored)
    family = raw.get("model_type")
    parts = list(_unsupported_keys(raw))
    if not isinstance(family, str) or family not in HUB_TYPES:
        parts.insert(0, f"model_type={family!r} (supported: {', '.join(HUB_TYPES)})")
        if raw.get("auto_map"):
            parts.append("code of its own (auto_map), which is never run")
        raise _refusal(name, parts)
    config = _resolved(folder, name)
    parts += HUB_TYPES[family].unsupported(config, raw)
    if parts:
        raise _refusal(name, parts)
    notes = list(HUB_TYPES[family].notes(config))
    if stored.get("auto_map"):
        notes.append(f"code of its own (auto_map) is not run: read as transformers' own {family}")
    if raw is not stored and stored.get("is_causal"):
        notes.append("is_causal: true in config.json is left out: read as an encoder")
    has_encoder_class = hub_type(family).is_encoder
    is_decoder = not has_encoder_class and getattr(config, "is_causal", True) is not False
    if not has_encoder_class and not is_decoder:
        notes.append("is_causal: false in config.json: an encoder, compared with bidirectional attention")
    return Described(
        family=family,
        settings=_settings(config, family, name),
        attention=AttentionKind.CAUSAL if is_decoder else AttentionKind.BIDIRECTIONAL,
        bos_id=next(iter(_ids(raw, "bos")), None),
        eos_ids=_ids(raw, "eos"),
        generation_ends=_generation_ends(folder),
        mask_id=next(iter(_ids(raw, "mask")), None),
        task_class=next((each for each in map(str, raw.get("architectures") or ()) if each.endswith(_TASKS)), None),
        notes=tuple(notes),
    )


def _ids(raw: dict[str, Any], role: str) -> tuple[int, ...]:
    found = raw.get(f"{role}_token_id")
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def _generation_ends(folder: Path) -> tuple[int, ...]:
    try:
        return _ids(json.loads((folder / "generation_config.json").read_text(encoding="utf-8")), "eos")
    # A decoder may lack the file, and nothing else is read from it.
    except (OSError, ValueError, AttributeError, RecursionError):
        return ()


def _settings(config: Any, family: str, name: str) -> ModelSettings:
    shape: dict[str, Any] = {key: getattr(config, key) for key in SHARED_FIELDS}
    try:
        return ModelSettings(**shape, **HUB_TYPES[family].settings_of(config))
    except ValidationError as error:
        found = explain(error, ModelSettings).splitlines()[0]
        raise UserError(f"{name}: config.json does not describe a model: {found} {_REMEDY}") from error


def _unsupported_keys(raw: dict[str, Any]) -> Iterator[str]:
    """Unsupported parts that a key of `config.json` reveals."""
    for key in _MIXTURE_KEYS:
        if raw.get(key):
            yield f"a mixture of experts ({key}={raw[key]!r})"
            break
    for key in _SOFTCAP_KEYS:
        if raw.get(key):
            yield f"logit soft-caps ({key}={raw[key]!r})"
    for key in _SCALES:
        if raw.get(key) not in (None, 1, 1.0):
            yield f"scaled streams ({key}={raw[key]!r})"
    if raw.get("quantization_config"):
        yield "quantized weights (quantization_config)"
    if raw.get("no_rope_layers") or raw.get("no_rope_layer_interval"):
        yield "layers without rotary positions (no_rope_layers)"


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "config.json"
    check_not_adapter(folder)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = (
            f" It is a checkpoint of this toolkit; export it with: toolkit convert --to-hf {quoted(name)} OUT"
            if holds_checkpoints(folder)
            else ""
        )
        raise UserError(
            f"{name} has no config.json, so it is not a Hugging Face model.{hint}\n"
            "Give a folder that save_pretrained wrote, or the id of a model on the hub."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}. {_REMEDY}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path} is invalid: expected a JSON object, got {json_kind(raw)}. {_REMEDY}")
    return raw


def _resolved(folder: Path, name: str) -> Any:
    """The configuration with its family's defaults."""
    try:
        return read_config(folder, local_files_only=True)
    except UserError:
        raise
    # transformers checks values in several ways, each with its own errors.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name}: transformers does not read its config.json: {reason}\n{_REMEDY}") from error


def _refusal(name: str, parts: list[str]) -> UserError:
    listed = "\n".join(f"  {part}" for part in parts)
    models = ", ".join(hub_type(each).models for each in HUB_TYPES)
    return UserError(
        f"{name} uses features that this toolkit's model does not support:\n"
        f"{listed}\nUse a model without them, of one of these families: {models}."
    )
