"""Settings that a fine-tuned folder gives back, and where its network predicts."""

from typing import Any
from unittest.mock import Mock

import pytest

from toolkit.finetuning import get_task, prediction
from toolkit.finetuning.prediction import answer, noted_settings


@pytest.mark.parametrize("given", [{"epochs": 1}, {"protocol": "paper"}, {"protocol": "paper", "epochs": 2}, {}])
@pytest.mark.parametrize("task", ["sc", "tc", "qa", "ir"])
def test_settings_are_those_of_the_training(task: str, given: dict[str, Any]) -> None:
    """All of them are noted, also those that exclude one another where both are given."""
    family = get_task(task)
    settings = family.Settings(**given, seed=3)
    noted = settings.model_dump(mode="json")
    assert noted_settings(family, noted, {}) == settings
    assert noted_settings(family, noted, {"max_length": 9}).max_length == 9


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_network_that_was_not_trained_here_predicts_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, device: str
) -> None:
    monkeypatch.setattr(prediction, "has_gpu", lambda: has_gpu)
    network, task = Mock(), Mock()
    answer(task, None, {}, network, Mock())
    network.to.assert_called_once_with(device)
    task.answer_splits.assert_called_once()
