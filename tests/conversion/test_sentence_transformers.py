"""The modules beside an exported encoder, for sentence-transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from tests.support.old_readers import check_by_old_rules
from toolkit.conversion import to_hf

SENTENCES = ["The old miller paints the red door.", "A young fox counts seven small boats."]


def _by_hand(folder: Path) -> torch.Tensor:
    """Embeddings as the modules describe them, by transformers alone: (2, D)."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return (hidden * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}])
def test_the_modules_are_the_encoder_and_a_mean(
    make_checkpoint: Callable[..., Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    out = tmp_path / "out"
    to_hf(make_checkpoint(**changes), out, sentence_transformers=True)
    modules = json.loads((out / "modules.json").read_text())
    assert [(module["path"], module["type"].rsplit(".", 1)[-1]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
    ]
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert (pooling["word_embedding_dimension"], pooling["pooling_mode_mean_tokens"]) == (64, True)
    assert json.loads((out / "sentence_bert_config.json").read_text())["max_seq_length"] == 128  # data.sequence_length
    assert _by_hand(out).shape == (2, 64)
    check_by_old_rules(out)


def test_sentence_transformers_reads_them(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    out = tmp_path / "out"
    to_hf(make_checkpoint(), out, sentence_transformers=True)
    model = library.SentenceTransformer(str(out), device="cpu")
    found = torch.as_tensor(model.encode(SENTENCES))
    torch.testing.assert_close(found, _by_hand(out), rtol=1e-4, atol=1e-5)
    cosine = float(model.similarity(found[:1], found[1:]))
    assert -1 <= cosine < 1


def test_an_empty_text_has_an_end_where_documents_had_no_frame(
    make_checkpoint: Callable[..., Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    """One empty text would end the run of hours that embeds it."""
    library = pytest.importorskip("sentence_transformers")
    bare = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    (bare / "encoding.json").write_text(json.dumps({"frame": {"front": [], "back": []}}))
    checkpoint = make_checkpoint(tokenizer=bare)
    to_hf(checkpoint, tmp_path / "plain")
    to_hf(checkpoint, tmp_path / "out", sentence_transformers=True)
    assert AutoTokenizer.from_pretrained(tmp_path / "plain")("").input_ids == []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("").input_ids == [tokenizer.eos_token_id]
    assert library.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode([""]).shape == (1, 64)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}])
def test_the_head_is_left_out_and_nothing_is_unexpected(
    make_checkpoint: Callable[..., Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    checkpoint = make_checkpoint(**changes)
    report = to_hf(checkpoint, out, sentence_transformers=True)
    to_hf(checkpoint, whole)
    _, loading = AutoModel.from_pretrained(out, output_loading_info=True)
    assert not any(loading.values())
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    assert any(note.startswith("the head is left out") for note in report.notes)
    assert torch.equal(_by_hand(out), _by_hand(whole))
    card = (out / "README.md").read_text()
    assert "SentenceTransformer(" in card
    assert "AutoModelForMaskedLM" not in card
    assert "AutoModelForCausalLM" not in card


def test_a_tied_head_is_the_embedding_and_stays(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = to_hf(make_checkpoint(tie_word_embeddings=True), out, sentence_transformers=True)
    for kind in (AutoModel, AutoModelForMaskedLM):
        _, loading = kind.from_pretrained(out, output_loading_info=True)
        assert not any(loading.values())
    assert not any("left out" in note for note in report.notes)
    card = (out / "README.md").read_text()
    assert "SentenceTransformer(" in card
    assert "with its masked-language-modeling head" in card
