"""Validation split of the paper's authors, cut from training if a data set has none."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from datasets import Dataset

from toolkit.core.errors import UserError
from toolkit.finetuning.settings import Split

_TRAINING_SHARE, _SPLIT_SEED = 0.95, 42

ExampleT = TypeVar("ExampleT")


def cut_validation(splits: Mapping[Split, Sequence[ExampleT]]) -> dict[Split, Sequence[ExampleT]]:
    """Return the splits with a validation split: their own, else a part of training."""
    if Split.VALIDATION in splits:
        return dict(splits)
    training = splits[Split.TRAIN]
    kept, held_out = ([training[row] for row in rows] for rows in split_training(len(training)))
    return {**splits, Split.TRAIN: kept, Split.VALIDATION: held_out}


def split_training(num_rows: int) -> tuple[list[int], list[int]]:
    """Row numbers of the training and the validation split that the paper's authors cut from a training file.

    5 % of rows are for validation, drawn by `datasets` with seed 42 whatever the run's seed; both in the order drawn.
    Given as 95 % for training, as theirs: a validation share would round to one row more for some files.
    """
    if num_rows < 2:
        raise UserError(
            "protocol = 'paper' takes 5 % of the training file for validation, but it has a single row. Add rows, or "
            "give a validation file (--validation)."
        )
    rows = Dataset.from_dict({"row": np.arange(num_rows)})
    parts = rows.train_test_split(train_size=_TRAINING_SHARE, seed=_SPLIT_SEED)
    return parts["train"][:]["row"], parts["test"][:]["row"]
