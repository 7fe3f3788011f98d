"""Corpora, runs and checkpoints, shown and verified; nothing is written, and a run at work is not disturbed."""

from toolkit.inspection.program import inspect, watch
from toolkit.inspection.verification import verify

__all__ = ["inspect", "verify", "watch"]
