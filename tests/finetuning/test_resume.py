"""A cell that is killed, and run again in the same folder, gives what an undisturbed one gives."""

import json
import random
import signal
import subprocess
import sys

import pytest
from transformers import Trainer

from tests.support.hf_encoders import WORDS, save_encoder
from toolkit.finetuning import trainer
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings
from toolkit.workflows.finetune import finetune

# Six steps an epoch; the encoder has dropout, so that random numbers have to go on where they stood.
SETTINGS = SequenceClassificationSettings(learning_rate=1e-3, seed=3, steps=15, batch_rows=16)

WRITTEN = ("result.json", "predictions.jsonl", "model/model.safetensors")


class Killed(BaseException):
    """What nothing handles, like a kill."""


def stop_at(monkeypatch, moment, step, stop):
    """Save after each step, and call `stop` in the middle."""
    monkeypatch.setattr(trainer, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    if moment == "answering":
        monkeypatch.setattr(SequenceClassification, "answer", stop)
        return
    owner, name = (trainer.StepEnds, "on_step_end") if moment == "after a step" else (Trainer, "_save_rng_state")
    original = getattr(owner, name)

    def stopping(self, *arguments, **others):
        state = self.state if isinstance(self, Trainer) else arguments[1]
        if state.global_step == step:
            stop()
        return original(self, *arguments, **others)

    monkeypatch.setattr(owner, name, stopping)


def run(folder, name, settings=SETTINGS):
    rows = folder / "rows.jsonl"
    finetune("sc", folder / "model", train=rows, test=rows, output=folder / name, settings=settings)
    return [(folder / name / file).read_bytes() for file in WRITTEN]


def run_until_stopped(folder, moment, step):
    def stop(*_, **__):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, moment, step, stop)
        with pytest.raises(Killed):
            run(folder, "out")


@pytest.fixture
def folder(tmp_path):
    draw = random.Random(0)
    rows = [{"text": " ".join(draw.choices(WORDS, k=draw.randint(3, 12))), "label": n % 2} for n in range(96)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_encoder("roberta", tmp_path / "model")
    return tmp_path


def run_in_process(folder, name, *, killed_at=None):
    """Where training began. In a process of its own: what else this one has run may change last digits."""
    stop = f'stop_at(patch, "after a step", {killed_at}, lambda: os.kill(os.getpid(), signal.SIGKILL))'
    code = f"""
import os, pathlib, pytest, signal
from tests.finetuning.conftest import watch_beginnings
from tests.finetuning.test_resume import run, stop_at
patch = pytest.MonkeyPatch()
beginnings = watch_beginnings(patch)
{stop if killed_at else ""}
run(pathlib.Path({str(folder)!r}), {name!r})
print(beginnings)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
    return None if killed_at else json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_killed_run_resumes_and_gives_what_an_undisturbed_one_gives(folder):
    out, undisturbed = folder / "out", folder / "undisturbed"
    run_in_process(folder, "out", killed_at=10)
    assert (out / ".unfinished" / "training" / "checkpoint-9").is_dir()
    assert not (out / "result.json").exists()
    assert run_in_process(folder, "out") == [9]
    assert run_in_process(folder, "undisturbed") == [0]
    assert [(out / file).read_bytes() for file in WRITTEN] == [(undisturbed / file).read_bytes() for file in WRITTEN]
    assert sorted(path.name for path in out.iterdir()) == ["model", "predictions.jsonl", "result.json"]


@pytest.mark.parametrize(
    ("moment", "step", "resumed"), [("after a step", 3, [2]), ("while saving", 13, [12]), ("answering", 0, [])]
)
def test_a_run_resumes_wherever_it_was_stopped(folder, begun_at, moment, step, resumed):
    run_until_stopped(folder, moment, step)
    begun_at.clear()
    assert run(folder, "out") == run(folder, "undisturbed")
    assert begun_at == [*resumed, 0]


def test_a_run_with_another_declaration_starts_over(folder, begun_at):
    run_until_stopped(folder, "after a step", 10)
    settings = SETTINGS.model_copy(update={"seed": 4})
    assert run(folder, "out", settings) == run(folder, "undisturbed", settings)
    assert begun_at == [0, 0, 0]


def test_data_that_changed_start_over(folder, begun_at):
    run_until_stopped(folder, "after a step", 10)
    rows = folder / "rows.jsonl"
    rows.write_text(rows.read_text().replace("w1 ", "w2 "))
    assert run(folder, "out") == run(folder, "undisturbed")
    assert begun_at == [0, 0, 0]
