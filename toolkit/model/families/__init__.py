"""Families of models: what all models of one have in common, whatever their shape. One file each.

A family says of which parts its blocks, embedding and head are (`toolkit.model.encoder` has them by name), and how
Hugging Face writes it: configurations, classes, names of parameters. Shapes are `toolkit.model.config`.
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
    """Its family's entry for a `model_type` that can be imported."""
    return HUB_TYPES[model_type].types[model_type]
