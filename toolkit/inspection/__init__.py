"""Corpora, runs and checkpoints for a person to read; nothing is written, and a run at work is not disturbed."""

from toolkit.inspection.program import inspect

__all__ = ["inspect"]
