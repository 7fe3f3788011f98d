"""Order of training inputs: batches of like length, as a function of seed and epoch."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

_BATCHES_PER_GROUP = 50


class LengthGroupedSampler(Sampler[int]):
    """Row numbers of one epoch after another; each slice of `batch_rows` has rows of like length.

    Rows are shuffled, sorted by length within groups of 50 batches (fewer where the file is small), cut into batches,
    and the batches are shuffled. Each iteration is the next epoch, so that a resumed run begins where it was killed.
    """

    def __init__(self, lengths: Sequence[int], *, batch_rows: int, seed: int, first_epoch: int = 0) -> None:
        self._lengths, self._batch_rows = np.array(lengths), batch_rows
        self._seed, self._epoch = seed, first_epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        rows, size = draw.permutation(len(self)), self._batch_rows
        # At least four groups, so that a small file does not give the same batches in every epoch.
        group = size * max(1, min(_BATCHES_PER_GROUP, len(rows) // (4 * size)))
        for start in range(0, len(rows), group):
            part = rows[start : start + group]
            rows[start : start + group] = part[np.argsort(self._lengths[part], kind="stable")]
        num_whole = len(rows) // size * size
        whole = draw.permutation(rows[:num_whole].reshape(-1, size))
        # A last, smaller batch stays last: the Trainer cuts this order into slices.
        return iter([*whole.ravel().tolist(), *rows[num_whole:].tolist()])
