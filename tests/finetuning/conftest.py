import pytest
from transformers import Trainer


def watch_beginnings(monkeypatch):
    """A list that gets the step at which each training begins."""
    steps, train = [], Trainer.train

    def spy(self, resume_from_checkpoint):
        steps.append(int(resume_from_checkpoint.split("-")[-1]) if resume_from_checkpoint else 0)
        return train(self, resume_from_checkpoint)

    monkeypatch.setattr(Trainer, "train", spy)
    return steps


@pytest.fixture
def begun_at(monkeypatch):
    """Steps at which the trainings of this test begin."""
    return watch_beginnings(monkeypatch)
