"""Fine-tuning runs of a quickstart, side by side: processes that share the cores, each with its own threads."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.console import Progress, progress
from toolkit.core.errors import UserError
from toolkit.engine import gpus
from toolkit.execution.local import LocalExecutor
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import Event, Key, Lost, Work, WorkShare

_TASK = "sc"
_RUNNER = "toolkit.workflows.quickstart.finetuning:open_runner"


@dataclass(frozen=True)
class FinetuningRun:
    """A fine-tuning run; `encoder` is a Hugging Face folder."""

    encoder: Path
    files: dict[str, Path]
    output: Path
    settings: dict[str, Any]
    initialization: str

    @property
    def name(self) -> str:
        """Name for messages, which may be of any of them."""
        return f"{self.output} ({self.initialization} weights)"


def finetune_side_by_side(runs: Sequence[FinetuningRun], *, logs: Path) -> None:
    """Run them all, as many at once as there are cores; one after the other on a GPU. Processes print to `logs`."""
    num_cores = len(os.sched_getaffinity(0))
    at_once = 1 if gpus.has_gpu() else min(len(runs), num_cores)
    environment = {"OMP_NUM_THREADS": str(num_cores // at_once)}
    executor = LocalExecutor(_RUNNER, environments=[environment] * at_once, logs=logs)
    with closing(executor), progress("fine-tuning", total=len(runs), unit="runs") as bar:
        items = [Work(key=run.name, payload=run) for run in runs]
        failed = run_work(items, executor, share=WorkShare(), observer=_Counted(bar))
    for name, message in failed.items():
        raise UserError(f"the fine-tuning run {name} failed: {message}")


class _Counted:
    def __init__(self, bar: Progress) -> None:
        self._bar, self._done = bar, 0

    def on_start(self, worker: int, key: Key) -> None: ...

    def on_event(self, event: Event) -> None:
        self._done += not isinstance(event, Lost)
        self._bar.update(self._done)

    def on_look(self) -> None: ...


def open_runner() -> Callable[[Work], None]:
    """Work of a process with a run."""
    from toolkit.core.allocator import keep_freed_memory
    from toolkit.finetuning import Initialization, get_task
    from toolkit.workflows.finetune import finetune

    if not gpus.has_gpu():
        keep_freed_memory()

    def finetune_run(work: Work) -> None:
        run: FinetuningRun = work.payload
        finetune(
            _TASK,
            run.encoder,
            output=run.output,
            settings=get_task(_TASK).Settings.model_validate(run.settings),
            initialization=Initialization(run.initialization),
            train=run.files["train"],
            validation=run.files["validation"],
            test=run.files["test"],
        )

    return finetune_run
