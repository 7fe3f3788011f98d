"""ModernBERT out in both of its classes: files, card, and what their users do with them, against our own model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)

from tests.conversion.test_to_hf import our_logits
from tests.support.hf_decoders import save_decoder
from tests.support.old_readers import check_by_old_rules
from tests.support.text import sample_documents
from toolkit.conversion import from_hf, to_hf
from toolkit.testing.models import MODEL_OPTIONS

Make = Callable[..., Path]


@pytest.fixture
def checkpoint(make_checkpoint: Make) -> Path:
    return make_checkpoint(**MODEL_OPTIONS["modernbert"])


def test_older_readers_find_their_keys_and_masks_are_filled(checkpoint: Path, tmp_path: Path) -> None:
    report = to_hf(checkpoint, tmp_path / "out")
    assert (report.architecture, report.notes) == ("ModernBertForMaskedLM", ())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    old = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "local_attention")
    assert [config[key] for key in old] == [2, 250.0, 60.0, 8]
    assert config["layer_types"] == ["full_attention", "sliding_attention"]
    assert (config["classifier_pooling"], config["norm_eps"]) == ("mean", 1e-5)
    ids = ("mask_token_id", "pad_token_id", "eos_token_id", "sep_token_id", "bos_token_id", "cls_token_id")
    assert [config[key] for key in ids] == [2, 1, 0, 0, None, None]
    fill = pipeline("fill-mask", model=str(tmp_path / "out"), tokenizer=str(tmp_path / "out"))
    text = f"The old miller{fill.tokenizer.mask_token} the red door of his house, and went away."
    ids_S = torch.tensor(fill.tokenizer(text).input_ids)
    logits_V = our_logits(checkpoint, ids_S, "bidirectional")[ids_S.tolist().index(2)]
    assert [row["token"] for row in fill(text)] == logits_V.topk(5).indices.tolist()


def test_the_decoder_generates_what_our_causal_logits_say(checkpoint: Path, tmp_path: Path) -> None:
    """Through the cache, whose window is narrower than the text."""
    report = to_hf(checkpoint, tmp_path / "out", form="causal")
    assert report.architecture == "ModernBertDecoderForCausalLM"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids_BS = tokenizer("My sister went to the river with a red", return_tensors="pt")["input_ids"]
    assert ids_BS.shape[1] > 8
    decoder = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    written = decoder.generate(ids_BS, max_new_tokens=12, do_sample=False, eos_token_id=-1)[0]
    logits_SV = our_logits(checkpoint, written, "causal")
    assert written[ids_BS.shape[1] :].tolist() == logits_SV[ids_BS.shape[1] - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("options", "oldest"),
    [
        ({}, ">= 4.48"),
        ({"form": "causal"}, ">= 5.3"),
        ({"architecture": "modernbert-decoder"}, "(checked with "),
    ],
)
def test_the_card_says_what_is_true_of_the_class(
    checkpoint: Path, tmp_path: Path, options: dict[str, str], oldest: str
) -> None:
    report = to_hf(checkpoint, tmp_path / "out", **options)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"as `{report.architecture}` of stock transformers {oldest}" in card
    assert not [name for name in ("EuroBert", "Llama", "vllm", "llama-server") if name in card]
    assert ("is_causal: false" in card) is ("architecture" in options)
    names: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace('"out"', repr(str(tmp_path / "out"))), names)
    assert names["tokens" if "form" in options else "logits"].shape[0] == 1


@pytest.mark.parametrize("architecture", ["modernbert", "modernbert-decoder"])
def test_sentence_transformers_pools_our_hidden_states(checkpoint: Path, tmp_path: Path, architecture: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    to_hf(checkpoint, tmp_path / "out", architecture=architecture, sentence_transformers=True)
    to_hf(checkpoint, tmp_path / "plain")
    for folder in ("out", "plain"):
        check_by_old_rules(tmp_path / folder)
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = sample_documents(3, seed=8)
    batch = AutoTokenizer.from_pretrained(tmp_path / "plain")(
        texts, padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    encoder = AutoModelForMaskedLM.from_pretrained(tmp_path / "plain").model.eval()
    mask_BS1 = batch["attention_mask"][..., None]
    with torch.no_grad():
        hidden_BSD = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    pooled_BD = (hidden_BSD * mask_BS1).sum(1) / mask_BS1.sum(1)
    torch.testing.assert_close(torch.as_tensor(model.encode(texts)), pooled_BD, rtol=1e-4, atol=1e-5)


def _save_with_its_tokenizer(folder: Path) -> None:
    """A toy with a tokenizer as ModernBERT's: `[CLS]` and `[SEP]` around a text and no names for them as bos and eos,
    spaces as added tokens, unused ones, and a mask that takes the blank before it.
    """
    ids = {"pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0, "sep_token_id": 1}
    save_decoder("modernbert", folder, vocab_size=448, **ids)
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["[CLS]", "[SEP]", "[PAD]", "[UNK]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sample_documents(200), trainer)
    backend.add_tokens([AddedToken(" " * width, normalized=True) for width in range(4, 1, -1)])
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    backend.add_tokens([AddedToken(f"[unused{number}]", normalized=True) for number in range(3)])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)  # type: ignore[no-untyped-call]


def test_its_own_tokenizer_keeps_its_ids(tmp_path: Path) -> None:
    _save_with_its_tokenizer(tmp_path / "model")
    report = from_hf(tmp_path / "model", tmp_path / "imported")
    assert {"bos: [CLS] (id 0), which config.json gives", "eos: [SEP] (id 1), which config.json gives"} <= {
        *report.changes
    }
    assert "mask: [MASK] (id 383), named by the tokenizer" in report.changes
    for form in ("bidirectional", "causal"):
        to_hf(tmp_path / "imported", tmp_path / form, form=form)
    own, encoder, decoder = (
        AutoTokenizer.from_pretrained(tmp_path / name) for name in ("model", "bidirectional", "causal")
    )
    for text in ("The river [MASK] long.", "The river[MASK] long.", "if x:\n    return  1", "[unused1] \u00e9"):
        assert encoder(text).input_ids == own(text).input_ids
        # A prompt goes on.
        assert decoder(text).input_ids == own(text).input_ids[:-1]
    config = json.loads((tmp_path / "bidirectional" / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("pad", "bos", "eos", "cls", "sep", "mask")] == [2, 0, 1, 0, 1, 383]
