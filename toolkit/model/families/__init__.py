"""Model families: what all models of a family have in common, whatever their shape. One file each.

A family names the parts of its blocks, embedding and head (`toolkit.model.encoder` looks them up), and describes its
Hugging Face format: configurations, classes, names of parameters. Shapes are in `toolkit.model.config`.
"""

from toolkit.model.config import ModelSettings
from toolkit.model.families.family import SHARED_FIELDS, Family, HubForm, HubType
from toolkit.model.families.llama import Llama
from toolkit.model.families.modernbert import ModernBert
from toolkit.model.families.ultrabert import UltraBert

__all__ = ["FAMILIES", "HUB_TYPES", "SHARED_FIELDS", "Family", "HubForm", "HubType", "family_of", "hub_type"]

FAMILIES: dict[str, Family] = {"llama": Llama(), "modernbert": ModernBert(), "ultrabert": UltraBert()}
"""Families by `model.family`."""
HUB_TYPES = {model_type: family for family in FAMILIES.values() for model_type in family.types}
"""Families by `model_type`."""


def family_of(settings: ModelSettings) -> Family:
    """The family of a model."""
    return FAMILIES[settings.family]


def hub_type(model_type: str) -> HubType:
    """The family's entry for an importable `model_type`."""
    return HUB_TYPES[model_type].types[model_type]
