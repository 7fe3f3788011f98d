"""The protocols, as far as they decide the same in every family: what is done without a validation split.

How a family's inputs and metrics differ by protocol stands in its own file.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from datasets import Dataset

from toolkit.core.errors import UserError
from toolkit.finetuning.settings import Split

_TRAINING_SHARE, _SPLIT_SEED = 0.95, 42

ExampleT = TypeVar("ExampleT")
Splits = Mapping[Split, Sequence[ExampleT]]


class FinetuningProtocol(Protocol):
    """Difference of `standard` and `paper` in all families."""

    def with_validation(self, splits: Splits[ExampleT]) -> dict[Split, Sequence[ExampleT]]:
        """The splits of a run, from those of its files."""


class Standard:
    """Inputs as the tokenizer makes them, and the field's usual metrics."""

    def with_validation(self, splits: Splits[ExampleT]) -> dict[Split, Sequence[ExampleT]]:
        """The same splits: there may be none for validation."""
        return dict(splits)


class Paper:
    """Inputs and metrics of the paper's authors."""

    def with_validation(self, splits: Splits[ExampleT]) -> dict[Split, Sequence[ExampleT]]:
        """The same splits; one for validation that is missing is cut off the training split."""
        if Split.VALIDATION in splits:
            return dict(splits)
        training = splits[Split.TRAIN]
        kept, held_out = ([training[row] for row in rows] for rows in split_training(len(training)))
        return {**splits, Split.TRAIN: kept, Split.VALIDATION: held_out}


PROTOCOLS: Mapping[str, FinetuningProtocol] = {"standard": Standard(), "paper": Paper()}


def split_training(num_rows: int) -> tuple[list[int], list[int]]:
    """Row numbers of the training and the validation split that the paper's authors cut from a training file.

    5 % of the rows, drawn by `datasets` with seed 42 whatever the seed of the run; both in the order of the draw. Given
    as 95 % for training, as theirs: the share for validation would round to one row more for some files.
    """
    if num_rows < 2:
        raise UserError(
            "protocol = 'paper' takes 5 % of the training file for validation, but it has a single row. Add rows, or "
            "give a validation file (--validation)."
        )
    rows = Dataset.from_dict({"row": np.arange(num_rows)})
    parts = rows.train_test_split(train_size=_TRAINING_SHARE, seed=_SPLIT_SEED)
    return parts["train"][:]["row"], parts["test"][:]["row"]
