"""Encoders in a decoder's class (`--architecture llama`), as stock transformers and our own import read them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from tests.conversion.test_to_hf import DECODER_SHAPES, SHAPES, our_logits
from tests.support.text import sample_documents
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import exporting, from_hf, to_hf
from toolkit.conversion.parity import Parity
from toolkit.core.errors import ToolkitError, UserError
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

IMPLEMENTATIONS = ["sdpa", "eager"]


def _logits(folder: Path, ids_BS: Tensor, mask_BS: Tensor | None = None, **options: Any) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    with torch.no_grad():
        return model(input_ids=ids_BS, attention_mask=mask_BS).logits


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", DECODER_SHAPES)
def test_logits_of_a_padded_batch_equal_ours_and_not_the_decoders(
    make_checkpoint: Callable[..., Path], tmp_path: Path, shape: str, implementation: str
) -> None:
    checkpoint, out = make_checkpoint(**SHAPES[shape]), tmp_path / "out"

    architecture = "modernbert-decoder" if shape == "modernbert" else "llama"
    report = to_hf(checkpoint, out, architecture=architecture)

    usual = "ModernBertDecoderForCausalLM" if shape == "modernbert" else "LlamaForCausalLM"
    assert report.architecture == ("Qwen3ForCausalLM" if SHAPES[shape].get("qk_norm") else usual)
    tokenizer = AutoTokenizer.from_pretrained(out)
    batch = tokenizer(sample_documents(5, seed=3), padding=True, return_tensors="pt")
    ids_BS, mask_BS = batch["input_ids"], batch["attention_mask"]
    assert not mask_BS.all()
    theirs = _logits(out, ids_BS, mask_BS, attn_implementation=implementation)
    for row, (ids, mask) in enumerate(zip(ids_BS, mask_BS.bool(), strict=True)):
        # ModernBERT's decoder, eager, fails where there is no mask.
        alone = _logits(out, ids[mask][None], attn_implementation="sdpa" if shape == "modernbert" else implementation)[
            0
        ]
        ours, decoder = (our_logits(checkpoint, ids[mask], kind) for kind in ("bidirectional", "causal"))
        assert float((theirs[row][mask] - ours).abs().max()) <= HUGGING_FACE_LOGITS
        assert float((alone - ours).abs().max()) <= HUGGING_FACE_LOGITS
        assert float((alone - decoder)[:-1].abs().max()) > 0.01


def test_hidden_states_equal_those_of_the_default_form(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    to_hf(checkpoint, tmp_path / "eurobert", architecture="eurobert")
    to_hf(checkpoint, tmp_path / "llama", architecture="llama")
    ids_BS = torch.arange(3, 63).reshape(2, 30)
    mask_BS = torch.ones_like(ids_BS)
    mask_BS[1, 20:] = 0
    with torch.no_grad():
        one, other = (
            AutoModel.from_pretrained(tmp_path / name).eval()(input_ids=ids_BS, attention_mask=mask_BS)
            for name in ("eurobert", "llama")
        )
    real = mask_BS.bool()
    assert float(one.last_hidden_state[real].abs().max()) > 1
    torch.testing.assert_close(one.last_hidden_state[real], other.last_hidden_state[real], rtol=0, atol=2e-5)
    # An encoder keeps no keys and values for a next token.
    assert getattr(other, "past_key_values", None) is None
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("eurobert", "llama"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_configuration_says_that_it_is_no_decoder(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    to_hf(make_checkpoint(), tmp_path / "encoder", architecture="llama")
    to_hf(make_checkpoint(), tmp_path / "decoder", form="causal", architecture="llama")
    to_hf(make_checkpoint(), tmp_path / "default", form="causal")
    encoder, decoder, default = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("encoder", "decoder", "default")
    )
    assert (encoder["model_type"], encoder["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert (encoder["is_causal"], encoder["use_cache"], encoder["mask_token_id"]) == (False, False, 2)
    assert decoder.get("is_causal", True) is True
    assert decoder == default
    assert not (tmp_path / "encoder" / "generation_config.json").exists()
    with pytest.raises(ValueError, match="LlamaConfig"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "encoder")


@pytest.mark.parametrize("shape", ["tied", "biases", "head norms, wide heads", "llama3 angles"])
def test_import_reads_it_back_bit_for_bit(make_checkpoint: Callable[..., Path], tmp_path: Path, shape: str) -> None:
    checkpoint = make_checkpoint(**SHAPES[shape])
    to_hf(checkpoint, tmp_path / "out", architecture="llama")

    report = from_hf(tmp_path / "out", tmp_path / "imported")

    assert any("an encoder, compared with bidirectional attention" in change for change in report.changes)
    before, after = open_checkpoint(checkpoint), open_checkpoint(tmp_path / "imported")
    assert before.names == after.names
    assert all(torch.equal(before.weight(name), after.weight(name)) for name in before.names)
    assert before.manifest.settings["model"] == after.manifest.settings["model"]
    assert after.manifest.vocabulary.mask_id == 2
    to_hf(tmp_path / "imported", tmp_path / "again", architecture="llama")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "out" / "config.json").read_text() == (tmp_path / "again" / "config.json").read_text()


@pytest.mark.parametrize("broken", IMPLEMENTATIONS)
def test_the_check_tries_both_kinds_of_attention(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    compare = exporting.compare_logits

    def one_is_off(stock: Any, *arguments: Any, **options: Any) -> Parity:
        is_broken = stock.model.config._attn_implementation == broken
        return Parity(0.5, 1.0) if is_broken else compare(stock, *arguments, **options)

    monkeypatch.setattr(exporting, "compare_logits", one_is_off)
    with pytest.raises(ToolkitError, match=r"our logits differ from those of the model in transformers by 5\.00e-01"):
        to_hf(make_checkpoint(), tmp_path / "out", architecture="llama")
    assert not (tmp_path / "out").exists()


def test_contradictions_are_refused(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"eurobert has no norms of heads(.|\n)*Use --architecture llama"):
        to_hf(make_checkpoint(step=10, qk_norm=True), tmp_path / "out", architecture="eurobert")
    with pytest.raises(UserError, match=r"unknown value 'bert'. Choose one of: eurobert, llama"):
        to_hf(make_checkpoint(step=30), tmp_path / "out", architecture="bert")
    assert not (tmp_path / "out").exists()


def test_the_card_loads_and_says_how_to_serve(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    to_hf(make_checkpoint(), out, architecture="llama")
    card = (out / "README.md").read_text()
    assert "as `LlamaForCausalLM` of stock transformers" in card
    assert "vllm serve out --runner pooling --convert embed" in card
    names: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace('"out"', repr(str(out))), names)
    assert names["logits"].shape[0] == 1
    shutil.rmtree(out)
    to_hf(make_checkpoint(), out)
    assert "vllm" not in (out / "README.md").read_text()
