"""Models of stock transformers, imported, exported in both forms, and compared with what they were."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import tokenization
from tests.support.hf_decoders import FAMILIES, TOKENS, edit_json, edit_tensors, save_decoder, save_tokenizer
from tests.support.text import sample_documents
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, importing, to_hf
from toolkit.core.errors import CheckpointError, ToolkitError, UserError
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

ENCODERS = ["eurobert", "modernbert", "ultrabert"]
DECODERS = [family for family in FAMILIES if family not in ENCODERS]
Save = Callable[..., Any]


def _inputs(folder: Path) -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [torch.tensor(tokenizer(text)["input_ids"])[None, :200] for text in sample_documents(4, seed=5)]


def _largest_difference(one: Any, other: Any, folder: Path) -> float:
    """Over the entries that are tokens; what a padding entry says is nobody's."""
    found = []
    for ids in _inputs(folder):
        with torch.no_grad():
            ours, theirs = (model(input_ids=ids).logits[..., :TOKENS] for model in (one, other))
        # Logits of this size make a small absolute tolerance mean something.
        assert theirs.abs().max() > 1
        found.append(float((ours - theirs).abs().max()))
    return max(found)


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_comes_back_the_same_and_as_an_encoder(family: str, tmp_path: Path) -> None:
    model = save_decoder(family, tmp_path / "model")

    report = from_hf(tmp_path / "model", tmp_path / "imported")
    to_hf(tmp_path / "imported", tmp_path / "decoder", form="causal")
    exported = to_hf(tmp_path / "imported", tmp_path / "encoder", form="bidirectional")

    assert report.max_difference <= HUGGING_FACE_LOGITS
    decoder = AutoModelForCausalLM.from_pretrained(tmp_path / "decoder").eval()
    assert _largest_difference(decoder, model, tmp_path / "model") <= HUGGING_FACE_LOGITS
    model.config.is_causal = False
    auto = AutoModelForCausalLM if family == "qwen3" else AutoModelForMaskedLM
    encoder = auto.from_pretrained(tmp_path / "encoder").eval()
    assert type(encoder).__name__ == exported.architecture
    assert _largest_difference(encoder, model, tmp_path / "model") <= HUGGING_FACE_LOGITS
    assert _largest_difference(encoder, decoder, tmp_path / "model") > 0.01


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_comes_back_the_same(family: str, tmp_path: Path) -> None:
    model = save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "imported")
    to_hf(tmp_path / "imported", tmp_path / "encoder")
    encoder = AutoModelForMaskedLM.from_pretrained(tmp_path / "encoder").eval()
    assert _largest_difference(encoder, model, tmp_path / "model") <= HUGGING_FACE_LOGITS


@pytest.mark.parametrize(
    ("form", "family"),
    [
        *product(("causal", "bidirectional"), ("qwen2", "qwen3", "modernbert", "modernbert-decoder")),
        ("bidirectional", "ultrabert"),
    ],
)
def test_what_we_wrote_is_imported_again(family: str, form: str, tmp_path: Path) -> None:
    save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "first")
    to_hf(tmp_path / "first", tmp_path / "out", form=form)
    from_hf(tmp_path / "out", tmp_path / "second")
    first, second = (open_checkpoint(tmp_path / name) for name in ("first", "second"))
    assert first.names == second.names
    assert all(torch.equal(first.weight(name), second.weight(name)) for name in first.names)
    assert first.manifest.settings == second.manifest.settings
    # The exported tokenizer names its pad, which the first did not, so that fingerprints differ.
    ids = {"size", "mask_id", "pad_id", "bos_id", "eos_id", "special_ids"}
    assert first.manifest.vocabulary.model_dump(include=ids) == second.manifest.vocabulary.model_dump(include=ids)


@pytest.mark.parametrize("family", ["smollm", "eurobert"])
def test_a_model_that_was_not_trained_here_reads_texts_as_before(family: str, tmp_path: Path) -> None:
    """Its tokenizer puts a token in front of a text and none behind; documents of ours would have an end."""
    model = save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "imported")
    before = AutoTokenizer.from_pretrained(tmp_path / "model")("The river").input_ids
    for form in ("bidirectional", "causal"):
        to_hf(tmp_path / "imported", tmp_path / form, form=form)
        assert AutoTokenizer.from_pretrained(tmp_path / form)("The river").input_ids == before
    if family == "eurobert":
        encoder = AutoModel.from_pretrained(tmp_path / "bidirectional").eval()
        ids = torch.tensor([before])
        with torch.no_grad():
            ours, theirs = (each(input_ids=ids).last_hidden_state.mean(1) for each in (encoder, model.model.eval()))
        assert torch.allclose(ours, theirs, atol=1e-5)


class TestRounding:
    """Large weights make rounding grow: what is allowed is measured on the stock model, and a fault still shows."""

    LARGE: ClassVar[dict[str, Any]] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "initializer_range": 0.3,
    }

    @staticmethod
    def model(folder: Path) -> None:
        save_decoder("llama 2", folder, **TestRounding.LARGE)

    def test_a_model_that_makes_rounding_grow_goes_through(self, tmp_path: Path) -> None:
        self.model(tmp_path / "model")
        report = from_hf(tmp_path / "model", tmp_path / "imported")
        assert report.max_difference > 2e-5 * report.max_logit
        assert any("makes rounding grow" in change for change in report.changes)
        exported = to_hf(tmp_path / "imported", tmp_path / "decoder", form="causal")
        assert exported.max_difference > 2e-5 * exported.max_logit

    def test_a_fault_does_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model(tmp_path / "model")
        blocks = importing._blocks

        def one_norm_off(weights: Any, name: str, *rest: Any) -> Any:
            for block in blocks(weights, name, *rest):
                yield block * 1.01 if name == "model.layers.3.input_layernorm.weight" else block

        monkeypatch.setattr(importing, "_blocks", one_norm_off)
        with pytest.raises(ToolkitError, match="our logits differ"):
            from_hf(tmp_path / "model", tmp_path / "imported")
        assert not (tmp_path / "imported").exists()


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model", max_shard_size="100KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").is_file()
    assert from_hf(tmp_path / "model", tmp_path / "out").max_difference <= HUGGING_FACE_LOGITS


def test_the_result_is_a_checkpoint_and_a_tokenizer(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "out")
    checkpoint = open_checkpoint(tmp_path / "out")
    manifest = checkpoint.manifest
    assert (manifest.step, manifest.has_moments, manifest.origin) == (0, False, {"model": "model", "family": "llama"})
    assert not checkpoint.parameter("model.norm.weight").exp_avg.any()
    tokenizer = tokenization.load(tmp_path / "out")
    assert tokenizer.fingerprint == manifest.vocabulary.fingerprint
    assert tokenizer.mask.id == manifest.vocabulary.mask_id == TOKENS


class TestMaskToken:
    """The embedding of a new mask token is a mean; every other number stays."""

    @pytest.mark.parametrize("family", ["llama 3", "smollm", "modernbert"])
    def test_new_entries_at_the_end_make_a_multiple_of_64(self, family: str, tmp_path: Path) -> None:
        """In embedding, head and bias alike; exports keep them, and the tokenizer knows the first alone."""
        model = save_decoder(family, tmp_path / "model")
        report = from_hf(tmp_path / "model", tmp_path / "out", mask_token="mean")
        checkpoint = open_checkpoint(tmp_path / "out")
        assert (report.settings.vocab_size, checkpoint.manifest.vocabulary.size) == (384, TOKENS + 1)
        theirs = {"lm_head.bias": "decoder.bias"} | (
            {"model.embed_tokens.weight": "model.embeddings.tok_embeddings.weight"} if family == "modernbert" else {}
        )
        for name in {"model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"} & set(checkpoint.names):
            before, after = model.get_parameter(theirs.get(name, name)).detach(), checkpoint.weight(name)
            assert torch.equal(after[:TOKENS], before)
            torch.testing.assert_close(after[TOKENS:], before.mean(0).expand_as(after[TOKENS:]))
        assert any("the vocabulary has 384 entries now, padding included" in change for change in report.changes)
        to_hf(tmp_path / "out", tmp_path / "encoder")
        assert AutoModel.from_pretrained(tmp_path / "encoder").config.vocab_size == 384

    def test_a_padding_entry_and_the_head_stays(self, tmp_path: Path) -> None:
        model = save_decoder("qwen3", tmp_path / "model")
        from_hf(tmp_path / "model", tmp_path / "out")
        checkpoint = open_checkpoint(tmp_path / "out")
        embedding = checkpoint.weight("model.embed_tokens.weight")
        before = model.get_parameter("model.embed_tokens.weight").detach()
        torch.testing.assert_close(embedding[TOKENS], before[:TOKENS].mean(0))
        assert torch.equal(embedding[TOKENS + 1 :], before[TOKENS + 1 :])
        assert torch.equal(checkpoint.weight("lm_head.weight"), model.get_parameter("lm_head.weight").detach())

    @pytest.mark.parametrize(
        ("policy", "found"), [("auto", "<|reserved_special_token_7|>"), ("reserved", "<|reserved_special_token_7|>")]
    )
    def test_a_reserved_slot_changes_no_weight(self, tmp_path: Path, policy: str, found: str) -> None:
        model = save_decoder("llama 3", tmp_path / "model")
        save_tokenizer(tmp_path / "model", specials=("<s>", "</s>", "<|reserved_special_token_7|>"))
        from_hf(tmp_path / "model", tmp_path / "out", mask_token=policy)
        checkpoint = open_checkpoint(tmp_path / "out")
        assert AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer").mask_token == found
        for name in checkpoint.names:
            assert torch.equal(checkpoint.weight(name), model.get_parameter(name).detach())

    @pytest.mark.parametrize(("policy", "mask_id"), [("auto", 2), ("mean", TOKENS), ("id:7", 7), ("token:a", None)])
    def test_a_named_mask_is_taken_unless_told_otherwise(
        self, tmp_path: Path, policy: str, mask_id: int | None
    ) -> None:
        save_decoder("llama 3", tmp_path / "model")
        save_tokenizer(tmp_path / "model", specials=("<s>", "</s>", "<hide>"), mask_token="<hide>")
        from_hf(tmp_path / "model", tmp_path / "out", mask_token=policy)
        tokenizer = tokenization.load(tmp_path / "out")
        assert tokenizer.mask.id == (tokenizer.backend.token_to_id("a") if mask_id is None else mask_id)


def test_ends_that_only_the_configuration_names_are_named(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model", eos_token_id=[1, 7])
    edit_json(tmp_path / "model" / "tokenizer_config.json", without=("eos_token",))
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert any("eos: </s> (id 1), which config.json gives" in change for change in report.changes)
    assert any("config.json says 1, 7" in change for change in report.changes)
    assert tokenization.load(tmp_path / "out").special_ids["eos"] == 1


def test_a_bias_at_the_output_of_attention_is_refused_unless_it_is_zero(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model", attention_bias=True)
    with pytest.raises(UserError, match=r"o_proj\.bias is not zero"):
        from_hf(tmp_path / "model", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _rename(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.top_proj.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")


DAMAGE = {
    "renamed": (_rename, "lacks model.layers.1.mlp.up_proj.weight(.|\n)*holds model.layers.1.mlp.top_proj.weight"),
    "too many": (
        lambda tensors: tensors.update({"model.layers.0.mlp.extra": torch.ones(2)}),
        "holds model.layers.0.mlp.extra",
    ),
    "shape": (
        lambda tensors: tensors.update({"lm_head.weight": torch.ones(TOKENS, 60)}),
        r"lm_head.weight has shape \(380, 60\)",
    ),
    "whole numbers": (
        lambda tensors: tensors.update({"lm_head.weight": torch.ones(TOKENS, 64, dtype=torch.int8)}),
        "lm_head.weight has dtype I8; quantized",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_weights_are_refused_with_the_tensors_name(kind: str, tmp_path: Path) -> None:
    change, message = DAMAGE[kind]
    save_decoder("llama 3", tmp_path / "model")
    edit_tensors(tmp_path / "model", change)
    with pytest.raises(CheckpointError, match=message) as caught:
        from_hf(tmp_path / "model", tmp_path / "out")
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_file_that_is_missing_names_what_it_lost(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model", max_shard_size="100KB")
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())["weight_map"]
    path = tmp_path / "model" / index["lm_head.weight"]
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        from_hf(tmp_path / "model", tmp_path / "out")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"is missing; .* says that it holds lm_head\.weight"):
        from_hf(tmp_path / "model", tmp_path / "out")


def test_a_place_that_is_taken_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(UserError, match="out already exists"):
        from_hf("no/such-model", tmp_path / "out")
