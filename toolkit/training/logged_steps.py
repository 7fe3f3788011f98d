"""Logged steps: which steps are written down, the line each gets, and those who write it.

The line is made once; metrics.jsonl, TensorBoard and Weights & Biases get the same numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolkit.training.loop import Hook
from toolkit.training.speed import Speed
from toolkit.training.state import RunState, StepRecord

_CURVES = ("learning_rate", "grad_norm", "tokens_per_second", "model_flops_per_second", "mfu")


class LineWriter(Protocol):
    """Where logged steps go."""

    def append(self, line: Mapping[str, Any]) -> None:
        """Write the line of one step."""

    def close(self) -> None:
        """At the end of the process, after an error too."""


class LogHook(Hook):
    """Writes logged steps, on rank 0: every `every`-th step, each evaluated one, the last of each phase."""

    def __init__(self, writers: Sequence[LineWriter], *, every: int, speed: Speed) -> None:
        self._writers, self._every, self._speed = writers, every, speed

    def after_step(self, state: RunState, record: StepRecord) -> None:
        """Write the line of a logged step."""
        self._speed.add(record)
        if not _is_logged(record, every=self._every):
            return
        line = _line(record, self._speed.take())
        for writer in self._writers:
            writer.append(line)

    def close(self) -> None:
        """Close all writers."""
        for writer in self._writers:
            writer.close()


class TensorBoardWriter:
    """RUN_DIR/tensorboard; steps after `first_step` of an earlier try are purged."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A fresh start makes step 0 again too: the validation losses before the first update.
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else 0)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write the scalars of a logged step."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a line by name. Losses are by objective, so that a switch shows."""
    named: dict[str, float] = {}
    if "loss" in line:
        named[f"loss/{line['objective']}"] = line["loss"]
    named |= {name: line[name] for name in _CURVES if name in line}
    return named | {f"validation/{name}": loss for name, loss in line.get("eval_loss", {}).items()}


def _is_logged(record: StepRecord, *, every: int) -> bool:
    """Whether a step gets a line. Step 0 has one only where it was evaluated."""
    if record.step == 0:
        return bool(record.eval_loss)
    return record.step % every == 0 or record.is_phase_end or bool(record.eval_loss)


def _line(record: StepRecord, rates: Mapping[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {
        "step": record.step,
        "phase": record.phase,
        "objective": record.objective,
        "attention": str(record.attention),
    }
    if record.loss is not None:
        line |= {
            "loss": record.loss,
            "targets": record.targets,
            "tokens": record.tokens,
            "learning_rate": record.learning_rate,
            "grad_norm": record.grad_norm,
            **rates,
        }
    else:
        line |= {"tokens": record.tokens}
    line["data_digest"] = record.digest.hex()
    if record.eval_loss:
        line["eval_loss"] = record.eval_loss
    return line
