"""What training leaves behind, and batches in parts."""

import json
import random

import pytest
import torch

from tests.support.grids import squad_paragraph
from tests.support.hf_encoders import WORDS, save_encoder
from toolkit.finetuning import Split, get_task, open_source, trainer


def test_each_epoch_has_batches_of_its_own():
    sampler = trainer.LengthGroupedSampler(range(64), batch_rows=4, seed=0)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(64))
    batches = [{frozenset(rows[start : start + 4]) for start in range(0, 64, 4)} for rows in (first, second)]
    assert batches[0] != batches[1]


def rows_of(task, folder):
    """Seventeen examples of very different lengths, so that parts of a batch have different numbers of targets."""
    draw = random.Random(0)
    texts = [draw.choices(WORDS, k=draw.randint(1, 25)) for _ in range(17)]
    if task == "tc":
        lines = ("\n".join(f"{word} {draw.choice(('O', 'B-A', 'I-A'))}" for word in text) for text in texts)
        (folder / "train.conll").write_text("\n\n".join(lines) + "\n")
        return folder / "train.conll"
    if task == "qa":
        contexts = [[word, *text, word] for word, text in zip(WORDS, texts, strict=False)]
        asked = [squad_paragraph(" ".join(text), "w1", [(text[-1], 0)], key=str(n)) for n, text in enumerate(contexts)]
        (folder / "train.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
        return folder / "train.json"
    lines = (json.dumps({"text": " ".join(text), "label": str(n % 2)}) for n, text in enumerate(texts))
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder / "train.jsonl"


def trained(task, file, source, folder):
    data = task.read(dict.fromkeys((Split.TRAIN, Split.TEST), file))
    torch.manual_seed(0)
    network = task.network(data, source)
    task.fit(network, task.encode(data, source)[Split.TRAIN], source, folder=folder)
    return network.state_dict()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sc", {}),
        ("sc", {"label_type": "number"}),
        ("sc", {"label_type": "set"}),
        ("tc", {}),
        ("qa", {}),
        ("qa", {"protocol": "paper"}),
    ],
)
def test_a_batch_in_parts_is_the_same_update(tmp_path, monkeypatch, name, options):
    """The last batch of an epoch too, which has a single row."""
    monkeypatch.setattr(trainer, "choose_autocast", lambda threads: "fp32")
    source, family = open_source(str(save_encoder("bert", tmp_path / "model"))), get_task(name)
    # A large epsilon: some gradients are 0 but for rounding, which Adam would blow up.
    settings = {"steps": 5, "batch_rows": 8, "learning_rate": 1e-2, "adam_eps": 1e-2, **options}
    file = rows_of(name, tmp_path)
    whole, *others = (
        trained(family(family.Settings(**settings, micro_rows=rows)), file, source, tmp_path / str(rows))
        for rows in (None, 8, 4, 1)
    )
    for parts in others:
        for key, weight in whole.items():
            torch.testing.assert_close(parts[key], weight, rtol=1e-4, atol=1e-5, msg=key)
    for key, weight in whole.items():
        assert torch.equal(others[0][key], weight)


def test_a_part_without_a_target_teaches_nothing(tmp_path):
    """As a window may be whose words another window answers; a mean over nothing is not a number."""
    source, family = open_source(str(save_encoder("bert", tmp_path / "model"))), get_task("tc")
    task = family(family.Settings(steps=4, batch_rows=2, micro_rows=1, learning_rate=1e-2))
    data = task.read(dict.fromkeys((Split.TRAIN, Split.TEST), rows_of("tc", tmp_path)))
    features = [
        row if number % 3 else {**row, "labels": [-100] * len(row["labels"])}
        for number, row in enumerate(task.encode(data, source)[Split.TRAIN])
    ]
    task.fit(task.network(data, source), features, source, folder=tmp_path / "training")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sc", {"batch_rows": 32, "micro_rows": 12}, "does not divide batch_rows = 32. Choose a divisor, such as 4"),
        ("ir", {"micro_rows": 8}, "Use chunk_rows"),
    ],
)
def test_parts_that_cannot_be_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_task(name).Settings(**options)
