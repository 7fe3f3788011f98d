"""Fine-tuning of encoders on labelled data, through transformers' Trainer.

A `Task` is a family of data sets, from files to scores; `prepare` tokenizes its data, `run_cell` trains and scores.
torch and transformers are imported on first use only: `toolkit finetune --help` needs just the settings.
"""

from typing import TYPE_CHECKING, Any

from toolkit.finetuning.settings import FinetuningSettings, Initialization, Split

if TYPE_CHECKING:
    from toolkit.finetuning.cell import FinetuningResult, Keep, PreparedTask, prepare, run_cell
    from toolkit.finetuning.encoder_source import EncoderSource, open_source
    from toolkit.finetuning.heads import load_classifier
    from toolkit.finetuning.task import Task, get_task, known_tasks

__all__ = [
    "EncoderSource",
    "FinetuningResult",
    "FinetuningSettings",
    "Initialization",
    "Keep",
    "PreparedTask",
    "Split",
    "Task",
    "get_task",
    "known_tasks",
    "load_classifier",
    "open_source",
    "prepare",
    "run_cell",
]

_ON_FIRST_USE = {
    "toolkit.finetuning.cell": ("FinetuningResult", "Keep", "PreparedTask", "prepare", "run_cell"),
    "toolkit.finetuning.heads": ("load_classifier",),
    "toolkit.finetuning.encoder_source": ("EncoderSource", "open_source"),
    "toolkit.finetuning.task": ("Task", "get_task", "known_tasks"),
}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access."""
    for module, names in _ON_FIRST_USE.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
