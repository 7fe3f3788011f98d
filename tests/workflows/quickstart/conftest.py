from collections.abc import Callable
from typing import Any

import pytest

from toolkit.execution.stages import StageRecord
from toolkit.finetuning import FinetuningResult, Initialization
from toolkit.run import load_run
from toolkit.run.step_plan import schedule_of
from toolkit.workflows.quickstart.evaluations import MaskedWord
from toolkit.workflows.quickstart.facts import Facts, Metrics


def _metrics(steps: int, *, switch: int, final_mlm: float) -> Metrics:
    """Losses that fall in straight lines, logged every 10th step, evaluated every 50th."""
    lines: list[dict[str, Any]] = []
    for step in range(0, steps + 1, 10):
        is_first = step <= switch
        line: dict[str, Any] = {
            "step": step,
            "phase": 0 if is_first else 1,
            "objective": "clm" if is_first else "mlm",
            "attention": "causal" if is_first else "bidirectional",
        }
        if step:
            line |= {"loss": 9.0 - 3.0 * step / steps, "tokens_per_second": 10_000.0}
        if step % 50 == 0:
            line["eval_loss"] = {"clm": 9.04 - 3.0 * step / steps, "mlm": 8.98 - (8.98 - final_mlm) * step / steps}
        lines.append(line)
    return tuple(lines)


def _result(accuracy: float, *, seed: int, initialization: Initialization, rate: float) -> FinetuningResult:
    return FinetuningResult(
        task="sc",
        model="runs/quickstart/hf-encoder",
        dataset="entity",
        initialization=initialization,
        seed=seed,
        learning_rate=rate,
        steps=100,
        metric="accuracy",
        validation={"accuracy": accuracy},
        test={"accuracy": accuracy},
        majority=0.63,
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have an empty image in place of their figure, whose drawing is most of the time that they take."""
    monkeypatch.setattr("toolkit.report.pages.html.draw", lambda *_: b"<svg/>")


@pytest.fixture
def make_facts() -> Callable[..., Facts]:
    """Made-up facts of a quickstart with 200 + 200 steps; keywords replace some."""

    def make(**changes: Any) -> Facts:
        settings = load_run("quickstart", ["train.steps=400", "lr.decay_steps=100", "model.vocab_size=8192"])
        random_twins = [(0, 0.65), (1, 0.66), (2, 0.70)]
        known: dict[str, Any] = {
            "folder": "runs/quickstart",
            "settings": settings,
            "phases": schedule_of(settings).phases,
            "settings_text": '[run]\ndir = "a & b"\n',
            "documents": 4020,
            "tokens": 2_658_851,
            "epochs": 0.3,
            "parameters": 3_146_880,
            "ranks": 2,
            "zero_stage": 2,
            "metrics": _metrics(400, switch=200, final_mlm=5.84),
            "unigram_loss": {"clm": 7.23, "mlm": 7.25},
            "masked_words": (
                MaskedWord("She", " was", " born <in> London.", ((" was", 0.5), (" is", 0.002))),
                MaskedWord("He", " had", " a dog.", ((" was", 0.4), (" <b>", 0.1))),
            ),
            "result": _result(0.77, seed=0, initialization=Initialization.PRETRAINED, rate=5e-4),
            "twins": tuple(
                _result(score, seed=seed, initialization=Initialization.RANDOM, rate=1e-3)
                for seed, score in random_twins
            ),
            "bag_of_words": 0.7,
            "num_labelled": {"train": 300, "validation": 200, "test": 1417},
            "files": (("run.toml", "all settings", 1234),),
            "max_logit_difference": 9.1e-6,
            "date": "2026-01-02 03:04 UTC",
            "machine": {"processor": "A & B, 2 cores", "toolkit": "0.1.0"},
            "stages": {
                "Prepare": StageRecord(key="", seconds=12.34, cpu_seconds=20.0),
                "Pretrain": StageRecord(key="", seconds=150.0, cpu_seconds=290.0),
            },
        }
        return Facts(**(known | changes))

    return make


@pytest.fixture
def mlm_only_metrics() -> Metrics:
    """A run without CLM that ends at 6.47."""
    return _metrics(400, switch=0, final_mlm=6.47)
