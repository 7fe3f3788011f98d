"""Corpora, runs and checkpoints, shown and verified; nothing is written, and a run at work is not disturbed."""

from toolkit.inspection.program import GRID, UNFINISHED, inspect, inspect_url, verify, watch

__all__ = ["GRID", "UNFINISHED", "inspect", "inspect_url", "verify", "watch"]
