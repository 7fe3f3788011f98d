"""What training leaves behind."""

import numpy as np

from tests.support.hf_encoders import WORDS, save_encoder
from toolkit.finetuning import Split, get_task, open_source, trainer


def test_answers_are_those_of_the_weights_alone_after_bf16_training(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "choose_autocast", lambda threads: "bf16")
    table = tmp_path / "train.jsonl"
    table.write_text("".join(f'{{"text": "{word}", "label": {number % 2}}}\n' for number, word in enumerate(WORDS)))
    source = open_source(str(save_encoder("eurobert", tmp_path / "model")))
    family = get_task("sc")
    task = family(family.Settings(steps=2, batch_rows=8, learning_rate=1e-2))
    data = task.read(dict.fromkeys((Split.TRAIN, Split.TEST), table))
    features = task.encode(data, source)[Split.TEST]
    network, fresh = task.network(data, source), task.network(data, source)
    task.fit(network, features, source, folder=tmp_path / "training")
    fresh.load_state_dict(network.state_dict())
    answers = [task.answer(one, features, source) for one in (network, fresh)]
    np.testing.assert_array_equal(*answers)
