"""The compute dtype of fine-tuning is measured under autocast, as it is used."""

import pytest
import torch

from toolkit.core.machine import processor_name
from toolkit.engine.precision import Turn
from toolkit.finetuning import precision as module
from toolkit.finetuning.precision import choose_autocast, cpu_autocast, time_autocast_steps, versions_and_device


def test_the_measurement_draws_nothing():
    threads, drawn = torch.get_num_threads(), torch.random.get_rng_state()
    for seconds in (seconds for turn in time_autocast_steps(1) for seconds in turn):
        assert set(seconds) == {"fp32", "bf16"}
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_it_is_kept_apart_from_that_of_pretraining(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slower, faster = (Turn(*[{"fp32": fp32, "bf16": 1.0}] * 2) for fp32 in (1.1, 2.0))
    monkeypatch.setattr(module, "time_autocast_steps", lambda threads: [slower])
    monkeypatch.setattr("toolkit.engine.precision.time_steps", lambda threads: [faster])
    assert choose_autocast(1) == "fp32"
    assert module.faster_on_this_cpu(1)[0] == "bf16"
    assert choose_autocast(1) == "fp32"


@pytest.mark.parametrize("given", ["fp32", "bf16"])
def test_what_the_command_has_measured_holds(monkeypatch, given):
    other = {"fp32": "bf16", "bf16": "fp32"}[given]
    monkeypatch.setattr(module, "faster_on_this_cpu", lambda *_, **__: (other, "measured"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with cpu_autocast(given):
        assert choose_autocast(1) == given
    assert choose_autocast(1) == other


def test_ds_accelerator_keeps_fine_tuning_off_gpus(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "faster_on_this_cpu", lambda *_, **__: ("fp32", "measured"))
    assert choose_autocast(1) == "fp32"
    assert versions_and_device()["device"] == processor_name()
