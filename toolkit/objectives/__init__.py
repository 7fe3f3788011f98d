"""Objectives: what the model is trained to predict. The only package that a plugin imports.

An objective turns token rows into inputs and a list of targets, and names the attention kind; no layer below it knows
which one is running. `schedule` determines which objective trains at which step.
"""

from toolkit.core.draws import Draws
from toolkit.core.settings import Settings
from toolkit.core.types import AttentionKind, FloatArray, IntArray, Targets, Vocabulary, WordBoundaries
from toolkit.objectives.base import Objective, ObjectiveClass
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.registry import build, get, register

__all__ = [
    "AttentionKind",
    "Draws",
    "FloatArray",
    "IntArray",
    "Objective",
    "ObjectiveClass",
    "PhaseSettings",
    "Settings",
    "Targets",
    "Vocabulary",
    "WordBoundaries",
    "build",
    "get",
    "register",
]
