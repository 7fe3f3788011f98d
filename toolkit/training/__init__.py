"""The pretraining program."""

from toolkit.run.resolve import Outcome
from toolkit.training.pretrain import pretrain

__all__ = ["Outcome", "pretrain"]
