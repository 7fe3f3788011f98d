"""The pretraining program."""

from toolkit.training.pretrain import Outcome, pretrain

__all__ = ["Outcome", "pretrain"]
