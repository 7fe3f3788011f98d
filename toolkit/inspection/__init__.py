"""Views and checks of corpora, runs and checkpoints; nothing is written, and a run in progress is not disturbed."""

from toolkit.inspection.program import GRID, UNFINISHED, inspect, inspect_url, verify, watch

__all__ = ["GRID", "UNFINISHED", "inspect", "inspect_url", "verify", "watch"]
