"""Encoders of other families, of toy size with random weights, saved as Hugging Face folders."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    UltrabertConfig,
    UltrabertForMaskedLM,
)

WORDS = [f"w{number}" for number in range(40)]
SPECIALS = ["<pad>", "<eos>", "<cls>", "<mask>", "<unk>"]
_VOCABULARY_SIZE = len(SPECIALS) + len(WORDS)
PAD, EOS, CLS, MASK, UNK = range(len(SPECIALS))
_SHAPE: dict[str, Any] = {
    "vocab_size": _VOCABULARY_SIZE, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 34, "pad_token_id": PAD, "eos_token_id": EOS,
    "bos_token_id": CLS,
}  # fmt: skip


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token; nothing is added around a text."""
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_words(), pad_token="<pad>", eos_token="<eos>", mask_token="<mask>", unk_token="<unk>"
    )


def template_tokenizer() -> PreTrainedTokenizerFast:
    """Adds `<cls> text <eos>`, and `<cls> a <eos> b <eos>` for pairs, as BERT's does."""
    words = _words()
    words.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>",
        pair="<cls> $A <eos> $B:1 <eos>:1",
        special_tokens=[("<cls>", CLS), ("<eos>", EOS)],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words,
        pad_token="<pad>",
        sep_token="<eos>",
        cls_token="<cls>",
        mask_token="<mask>",
        unk_token="<unk>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _words() -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate([*SPECIALS, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return words


def save_encoder(kind: str, folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """A language model of one of six families, with a tokenizer that suits it; Qwen3's is a decoder."""
    torch.manual_seed(1)
    model: PreTrainedModel
    if kind == "eurobert":
        model = EuroBertForMaskedLM(EuroBertConfig(**_SHAPE, mask_token_id=MASK))
    elif kind == "bert":
        model = BertForMaskedLM(BertConfig(**_SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=8))
    elif kind == "roberta":
        model = RobertaForMaskedLM(RobertaConfig(**_SHAPE))
    elif kind == "ultrabert":
        model = UltrabertForMaskedLM(UltrabertConfig(**_SHAPE, sliding_window=4, prediction_head_size=24))
    else:
        model = ModernBertForMaskedLM(ModernBertConfig(**_SHAPE, cls_token_id=CLS, sep_token_id=EOS))
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(folder)
    (plain_tokenizer() if kind in ("eurobert", "qwen3") else template_tokenizer()).save_pretrained(folder)
    return folder
