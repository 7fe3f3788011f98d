"""Corpora, runs and checkpoints, shown and verified; nothing is written, and a run at work is not disturbed."""

from toolkit.inspection.program import inspect, inspect_url, verify, watch

__all__ = ["inspect", "inspect_url", "verify", "watch"]
