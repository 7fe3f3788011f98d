"""Networks to fine-tune: encoders, loaded completely or refused, and the recipe's small sequence-level head.

EuroBERT, ModernBERT and similar models have this head in transformers (`classifier_pooling="mean"`), so their stock
class is used and the saved folder loads without this toolkit. Every other encoder gets the same head from here; its
folder is the encoder's, plus a file with the head, and has no label names: a stock class would make a random head and
predict under those names. All weights are fp32, whatever the dtype in the folder.

Shapes: B inputs, S positions in an input, D model width.
"""

import copy
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few
from toolkit.finetuning.encoder_source import EncoderSource, model_loading
from toolkit.finetuning.sc.examples import labels_of_pair, paper_text
from toolkit.finetuning.sc.labels import LABEL_TYPES
from toolkit.finetuning.settings import TASK_FILE, Initialization
from toolkit.model.families import HUB_TYPES, hub_type
from toolkit.model_folder import read_json, wrapper_prefix

_HEAD_FILE, LABELS_FILE = "head.safetensors", "labels.json"
_TASK_LAYERS = ("dense", "classifier", "score", "qa_outputs")
"""Layers that stock classes put on an encoder for a task. ModernBERT's `head` is none: it is pretrained."""
_ROWS = 32


class MeanPoolingClassifier(nn.Module):
    """Masked mean of the last hidden states -> dense -> GELU -> linear, over any encoder."""

    def __init__(self, encoder: PreTrainedModel, num_outputs: int, *, problem_type: str) -> None:
        super().__init__()
        config = encoder.config
        self.encoder, self.problem_type = encoder, problem_type
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, num_outputs)
        deviation = getattr(config, "initializer_range", 0.02)
        for layer in (self.dense, self.classifier):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits (B, classes) from ids and mask, both (B, S)."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden_BSD = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        weight_BS1 = attention_mask.unsqueeze(-1).to(hidden_BSD.dtype)
        pooled_BD = (hidden_BSD * weight_BS1).sum(dim=1) / weight_BS1.sum(dim=1)
        logits = self.classifier(nn.functional.gelu(self.dense(pooled_BD)))
        return SequenceClassifierOutput(logits=logits)


def load_network(
    auto_class: Any,
    source: EncoderSource,
    *,
    labels: Sequence[str] = (),
    device: str | None = None,
    **config_changes: Any,
) -> PreTrainedModel:
    """Load an encoder, with or without a stock head, in fp32; new weights are drawn from torch's global generator.

    Missing weights of the encoder or of a language model's head are an error: some stock classes look for them under
    other names than the folder's, and would only warn and go on with random ones. On the device `meta`, only this is
    checked and no weights are read.
    """
    config = copy.deepcopy(source.config)
    if labels:
        config_changes["id2label"] = dict(enumerate(labels))
        config_changes["label2id"] = {label: index for index, label in enumerate(labels)}
    for name, value in config_changes.items():
        setattr(config, name, value)
    with model_loading(source.model):
        if source.initialization is Initialization.RANDOM:
            network: PreTrainedModel = auto_class.from_config(config, dtype=torch.float32)
            missing: set[str] = set()
        else:
            network, missing = _read_network(auto_class, source, config, device)
    _check_whole(network, missing, source)
    embedding = network.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and config.pad_token_id == config.eos_token_id:
        # The recipe's tokenizer pads with the end-of-text token: let its embedding learn.
        embedding.padding_idx = None
    return network


def _read_network(
    auto_class: Any, source: EncoderSource, config: PretrainedConfig, device: str | None
) -> tuple[PreTrainedModel, set[str]]:
    """Return a folder's model and the names that it lacks; a prefix that a wrapper put before all names is dropped."""
    # Of other sizes a task's head may be, which is new anyway.
    options: dict[str, Any] = {"config": config, "dtype": torch.float32, "device_map": device}
    options |= {"output_loading_info": True, "trust_remote_code": False, "ignore_mismatched_sizes": True}
    read = partial(auto_class.from_pretrained, source.model, **options)
    network, report = read()
    missing, prefix = set(report["missing_keys"]), f"{network.base_model_prefix}."
    in_class = hub_type(config.model_type).in_class if config.model_type in HUB_TYPES else str
    unexpected = {in_class(name) for name in report["unexpected_keys"]}
    if missing and (wrapper := wrapper_prefix(unexpected, missing, of_class=prefix)):
        if device is None:
            console().print(f"{source.model}: {wrapper} in front of the names of its weights is left out.")
        network, report = read(key_mapping={f"^{re.escape(wrapper)}": ""})
        missing = set(report["missing_keys"])
    for name, found, expected in sorted(report["mismatched_keys"]):
        if name.partition(".")[0] not in _TASK_LAYERS:
            raise ValueError(f"{name} has the shape {tuple(found)}, expected {tuple(expected)}.")
    if network.base_model is not network:
        _renew_head(network, missing, auto_class)
    return network, missing


def _renew_head(network: PreTrainedModel, missing: set[str], auto_class: Any) -> None:
    """Replace the layers of a task's head that the folder of a fine-tuned model had by new ones."""
    lacking = {name.partition(".")[0] for name in missing}
    stored = [layer for layer in _TASK_LAYERS if hasattr(network, layer) and layer not in lacking]
    if stored:
        new = auto_class.from_config(network.config, dtype=torch.float32)
        for layer in stored:
            setattr(network, layer, getattr(new, layer))


def _check_whole(network: PreTrainedModel, missing: set[str], source: EncoderSource) -> None:
    """Refuse missing weights of an encoder or of a language model's head: only a task's head is new."""
    is_encoder, prefix = network.base_model is network, f"{network.base_model_prefix}."
    # Masked-language models are saved without the pooler that some encoders have, and nothing here uses one.
    names = sorted(name for name in missing if ".pooler." not in f".{name}")
    lacking = [name for name in names if is_encoder or name.startswith(prefix)]
    if lacking:
        raise UserError(
            f"could not load {source.model}: {counted(len(lacking), 'weight')} of the encoder missing (first: "
            f"{lacking[0]}). Download it again, or use another one."
        )
    if names and not is_encoder and network.get_output_embeddings() is not None:  # type: ignore[no-untyped-call]
        raise UserError(
            f"{source.model} has no head that predicts tokens ({first_few(names)} missing): it was saved without one, "
            "as sentence encoders and classifiers are, and gives no probabilities. Use the language model that it was "
            "made from."
        )


def new_classifier(source: EncoderSource, labels: Sequence[str], *, problem_type: str) -> nn.Module:
    """An encoder with a new sequence-level head: mean pooling -> dense -> GELU -> linear."""
    kind = type(source.config)
    if hasattr(kind, "classifier_pooling") and kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        changes: dict[str, Any] = {"problem_type": problem_type, "classifier_pooling": "mean"}
        return load_network(AutoModelForSequenceClassification, source, labels=labels, **changes)
    # The default names, which the saved configuration omits: MODEL may itself be a classifier with labels.
    unnamed = [f"LABEL_{number}" for number in range(2)]
    encoder = load_network(AutoModel, source, labels=unnamed, problem_type=None)
    return MeanPoolingClassifier(encoder, len(labels), problem_type=problem_type)


def save_classifier(classifier: nn.Module, folder: Path) -> None:
    """Write the folder from which AutoModel loads the encoder, and `load_classifier` encoder and head."""
    if isinstance(classifier, MeanPoolingClassifier):
        classifier.encoder.save_pretrained(folder)
        weights = classifier.state_dict().items()
        head = {name: tensor.contiguous() for name, tensor in weights if not name.startswith("encoder.")}
        save_file(head, folder / _HEAD_FILE, metadata={"problem_type": classifier.problem_type})
    else:
        assert isinstance(classifier, PreTrainedModel)
        classifier.save_pretrained(folder)


def has_head_file(folder: Path) -> bool:
    """True if a `model/` folder has its head in a file beside the encoder's."""
    return (folder / _HEAD_FILE).is_file()


def read_labels(folder: Path) -> list[Any] | None:
    """Labels of a fine-tuned folder's outputs, with their types; None for regression."""
    path = folder / LABELS_FILE
    labels: list[Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return labels


class TextClassifier:
    """A fine-tuned classifier with its tokenizer: texts in, labels out. Made by `load_classifier`.

    Attributes:
        network: ids and mask in, logits out; fp32, in evaluation mode.
        tokenizer: the one used in training.
        labels: labels of the outputs, with their types; None for regression.
    """

    def __init__(self, network: nn.Module, folder: Path, *, problem_type: str | None) -> None:
        self.network, self.tokenizer = network.eval(), AutoTokenizer.from_pretrained(folder)
        self.labels = read_labels(folder)
        kinds = {kind.problem_type: kind for kind in LABEL_TYPES.values()}
        if problem_type not in kinds:
            raise UserError(
                f"{folder} does not say what its outputs are (problem_type), as what `toolkit finetune sc` wrote does. "
                "Give such a folder, or use the pipeline of transformers."
            )
        self._answer = kinds[problem_type].restored(self.labels).answer
        notes = read_json(folder / TASK_FILE)
        settings = notes.get("settings", {})
        is_paper = settings.get("protocol") == "paper"
        self._longest = self.tokenizer.model_max_length if is_paper else None
        self._pair_labels: Sequence[str] | None = None
        if is_paper and len(notes["columns"]) == 2:
            self._pair_labels = settings["pair_labels"] or labels_of_pair(notes["columns"])

    @torch.no_grad()
    def __call__(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> list[Any]:
        """Predict the label of each text, or of each pair of texts: a class, a number, or a list of labels."""
        given = [[column] if isinstance(column, str) else column for column in (texts, pairs) if column is not None]
        if len(given) == 2 and self._pair_labels is not None:
            given = [[paper_text(one, other, self._pair_labels) for one, other in zip(*given, strict=True)]]
        answers: list[Any] = []
        for start in range(0, len(given[0]), _ROWS):
            rows = [list(column[start : start + _ROWS]) for column in given]
            # As in training, a text of the paper's protocol that is too long loses its end-of-text token.
            encoded = self.tokenizer(*rows, truncation=self._longest is None, verbose=False)
            cut = {name: [ids[: self._longest] for ids in column] for name, column in encoded.items()}
            batch = self.tokenizer.pad(cut, return_tensors="pt", verbose=False)
            answers += map(self._answer, self.network(**batch).logits.numpy())
        return answers


def load_classifier(folder: Path | str) -> TextClassifier:
    """Load the fine-tuned classifier of a `model/` folder; called on texts, it returns their labels."""
    folder = Path(folder)
    if not has_head_file(folder):
        whole = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        return TextClassifier(whole, folder, problem_type=whole.config.problem_type)
    with safe_open(folder / _HEAD_FILE, "pt") as file:
        head = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        problem_type = (file.metadata() or {}).get("problem_type", "")
    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
    classifier = MeanPoolingClassifier(encoder, len(head["classifier.bias"]), problem_type=problem_type)
    classifier.load_state_dict(head, strict=False)
    return TextClassifier(classifier, folder, problem_type=problem_type)
