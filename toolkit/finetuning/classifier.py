"""The model that is fine-tuned: an encoder, the mean of its hidden states, and the recipe's small head.

EuroBERT has such a head of its own in transformers (`classifier_pooling="mean"`), so its stock class is used and the
saved folder needs nothing of ours. Every other encoder gets the same head from here; its folder is the encoder's, with
the head in a file beside it. All weights are fp32, whatever the folder holds.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from toolkit.finetuning.run import Initialization

_HEAD_FILE = "head.safetensors"


class MeanPoolingClassifier(nn.Module):
    """Masked mean of the last hidden states -> dense -> GELU -> linear, over any encoder.

    Args:
        encoder: gives `last_hidden_state`, (B, S, D); its configuration knows the number of classes.
    """

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        config = encoder.config
        assert config.num_labels is not None
        self.encoder = encoder
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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

    def head_state(self) -> dict[str, torch.Tensor]:
        """The head's own tensors."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("encoder.")}


def new_classifier(
    model: str, config: PretrainedConfig, *, initialization: Initialization
) -> tuple[nn.Module, list[str]]:
    """The encoder with a fresh head, drawn from torch's global generator: seed it first.

    Args:
        model: folder or hub id; only its configuration is used when the weights are random.
        config: the model's configuration, with the number of classes in `num_labels`.
        initialization: whether the encoder's weights are read or drawn.

    Returns:
        The classifier, and the names of encoder weights that the folder lacks.
    """
    has_own_head = config.model_type == "eurobert"
    if has_own_head:
        config.classifier_pooling = "mean"
    loader = AutoModelForSequenceClassification if has_own_head else AutoModel
    if initialization is Initialization.RANDOM:
        network, missing = loader.from_config(config, dtype=torch.float32), []  # type: ignore[no-untyped-call]
    else:
        network, report = loader.from_pretrained(model, config=config, dtype=torch.float32, output_loading_info=True)
        # The head is new, and a pooler (which masked-language models are saved without) is not used.
        fresh = ("dense.", "classifier.", "pooler.")
        missing = sorted(name for name in report["missing_keys"] if not name.startswith(fresh))
    classifier = network if has_own_head else MeanPoolingClassifier(network)
    embedding = network.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and network.config.pad_token_id == network.config.eos_token_id:
        # In the recipe's tokenizer the padding token is the end-of-text token as well: let its embedding learn.
        embedding.padding_idx = None
    return classifier, missing


def encoder_of(classifier: nn.Module) -> PreTrainedModel:
    """The encoder inside."""
    inside = classifier.encoder if isinstance(classifier, MeanPoolingClassifier) else classifier.base_model
    assert isinstance(inside, PreTrainedModel)
    return inside


def save_classifier(classifier: nn.Module, folder: Path) -> None:
    """Write the folder from which AutoModel loads the encoder and `load_classifier` the whole."""
    if isinstance(classifier, MeanPoolingClassifier):
        classifier.encoder.save_pretrained(folder)
        save_file({name: tensor.contiguous() for name, tensor in classifier.head_state().items()}, folder / _HEAD_FILE)
    else:
        assert isinstance(classifier, PreTrainedModel)
        classifier.save_pretrained(folder)


def load_classifier(folder: Path) -> nn.Module:
    """The fine-tuned model of a `model/` folder, in fp32 and ready for prediction: ids and mask in, logits out."""
    if not (folder / _HEAD_FILE).is_file():
        whole: nn.Module = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        return whole.eval()
    classifier = MeanPoolingClassifier(AutoModel.from_pretrained(folder, dtype=torch.float32))
    classifier.load_state_dict(load_file(folder / _HEAD_FILE), strict=False)
    return classifier.eval()
