import math

import numpy as np
import pytest

from toolkit.run.data import open_run_data
from toolkit.run.load import declare_run
from toolkit.testing.corpora import write_token_corpus
from toolkit.workflows.quickstart.evaluations import unigram_losses


def test_losses_of_a_unigram_model(tmp_path):
    """Of 100 training tokens 60 are id 3, 39 are id 4; held-out text is one segment of ids 3 4 3 4 and so on.

    With one added to each of five counts, ids 3 and 4 have shares 61/105 and 40/105. CLM predicts every token of the
    row but the first, 7 of them id 4 and 6 of them id 3.
    """
    ids = {"eos": 0, "pad": 1, "mask": 2}
    train = np.array([3] * 60 + [4] * 39 + [0])
    held_out = np.array([3, 4] * 7)
    corpus = write_token_corpus(tmp_path / "train", [train], vocabulary_size=5, **ids)
    validation = write_token_corpus(tmp_path / "validation", [held_out], vocabulary_size=5, **ids)
    places = [f'data.train="{corpus}"', f'data.validation="{validation}"']
    data = open_run_data(declare_run("quickstart", [*places, "data.sequence_length=16"]))
    losses = unigram_losses(data)
    assert losses["clm"] == pytest.approx(-(6 * math.log(61 / 105) + 7 * math.log(40 / 105)) / 13)
    assert -math.log(61 / 105) <= losses["mlm"] <= -math.log(40 / 105)
