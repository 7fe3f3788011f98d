"""Fine-tuning of encoders on labelled data, through transformers' Trainer.

A `Task` is a family of data sets, from files to scores; `prepare` and `run_cell` run one on prepared data. Heavy:
imports torch and transformers.
"""

from toolkit.finetuning.cell import FinetuningResult, Keep, PreparedTask, prepare, run_cell
from toolkit.finetuning.heads import MeanPoolingClassifier, load_classifier
from toolkit.finetuning.settings import FinetuningSettings, Initialization
from toolkit.finetuning.source import EncoderSource, open_source
from toolkit.finetuning.task import Split, Task, get_task, known_tasks

__all__ = [
    "EncoderSource",
    "FinetuningResult",
    "FinetuningSettings",
    "Initialization",
    "Keep",
    "MeanPoolingClassifier",
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
