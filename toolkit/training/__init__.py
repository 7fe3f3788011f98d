"""Pretraining: rows meet objectives, the engine steps, hooks watch."""

from toolkit.training.pretrain import Outcome, pretrain

__all__ = ["Outcome", "pretrain"]
