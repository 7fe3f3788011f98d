"""The validation split of the paper's protocol."""

import numpy as np
from datasets import Dataset

from toolkit.core.errors import UserError

_TRAINING_SHARE, _SPLIT_SEED = 0.95, 42


def split_training(num_rows: int) -> tuple[list[int], list[int]]:
    """Row numbers of the training and the validation split that the paper's authors cut from a training file.

    5 % of the rows, drawn by `datasets` with seed 42 whatever the seed of the run; both in the order of the draw. Given
    as 95 % for training, as theirs: the share for validation would round to one row more for some files.

    Args:
        num_rows: rows of the training file.

    Raises:
        UserError: the file has a single row.
    """
    if num_rows < 2:
        raise UserError(
            "protocol = 'paper' takes 5 % of the training file for validation, but it has a single row. Add rows, or "
            "give a validation file (--validation)."
        )
    rows = Dataset.from_dict({"row": np.arange(num_rows)})
    parts = rows.train_test_split(train_size=_TRAINING_SHARE, seed=_SPLIT_SEED)
    return parts["train"][:]["row"], parts["test"][:]["row"]
