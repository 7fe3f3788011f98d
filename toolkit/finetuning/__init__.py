"""Fine-tuning of encoders on labelled data, through transformers' Trainer.

`finetune_sequence_classification` is the program; the rest are its words. Heavy: imports torch and transformers.
"""

from toolkit.finetuning.classifier import MeanPoolingClassifier, load_classifier
from toolkit.finetuning.run import FinetuningResult, FinetuningSettings, Initialization
from toolkit.finetuning.sequence_classification import finetune_sequence_classification

__all__ = [
    "FinetuningResult",
    "FinetuningSettings",
    "Initialization",
    "MeanPoolingClassifier",
    "finetune_sequence_classification",
    "load_classifier",
]
