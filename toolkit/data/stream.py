"""What training reads from: sample positions in, rows of tokens out."""

import numpy as np
import numpy.typing as npt

from toolkit.data.order import Order
from toolkit.data.windows import Rows, TokenRows

__all__ = ["RowStream"]


class RowStream:
    """The rows of a run, in order. It has no state: position p gives the same row whoever asks, and when."""

    def __init__(self, rows: Rows, order: Order) -> None:
        assert rows.num_rows == order.num_rows
        self.rows, self.order = rows, order

    def at(self, positions_B: npt.NDArray[np.int64]) -> TokenRows:
        """The rows at these sample positions, counted from 0 over the whole run.

        Raises:
            CorpusError: a file turns out to be damaged.
        """
        return self.rows.read(*self.order.locate(positions_B))
