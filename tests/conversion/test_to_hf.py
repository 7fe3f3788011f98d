"""Parity through the real converter: a checkpoint written by the real writer, converted, loaded by stock transformers.

The reference here is not the converter's own check: logits of the Auto classes are compared with our encoder on text of
the test's own, and the tensors with the checkpoint's.
"""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

import tokenization
from tests.support.text import sample_documents
from tokenization import EncodingRules
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import to_hf
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.model import Encoder, ModelSettings
from toolkit.testing.models import MODEL_OPTIONS

AUTO = {"bidirectional": AutoModelForMaskedLM, "causal": AutoModelForCausalLM}
SHAPES = {
    "grouped heads": {},
    "all heads": {"num_key_value_heads": None},
    "tied": {"tie_word_embeddings": True},
    "other numbers": {"rope_theta": 500.0, "rms_norm_eps": 1e-3, "num_hidden_layers": 3},
    **MODEL_OPTIONS,
}
# transformers has no decoder of UltraBERT.
DECODER_SHAPES = [shape for shape, changes in SHAPES.items() if changes.get("family") != "ultrabert"]


def our_logits(checkpoint: Path, text_ids: Tensor, kind: str, *, rounded_to: torch.dtype = torch.float32) -> Tensor:
    source = open_checkpoint(checkpoint)
    encoder = Encoder(ModelSettings(**source.manifest.settings["model"]))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.copy_(source.weight(name).to(rounded_to))
        return encoder.logits(text_ids[None], torch.ones_like(text_ids[None]), AttentionKind(kind))


@pytest.mark.parametrize(("form", "shape"), [*product(["bidirectional"], SHAPES), *product(["causal"], DECODER_SHAPES)])
def test_logits_of_stock_transformers_equal_ours(
    make_checkpoint: Callable[..., Path], tmp_path: Path, form: str, shape: str
) -> None:
    checkpoint, out = make_checkpoint(**SHAPES[shape]), tmp_path / "out"

    report = to_hf(checkpoint, out, form=form, dtype="fp32")

    # Norms of heads are in Qwen3 alone, which has no masked-LM class.
    auto = AutoModelForCausalLM if SHAPES[shape].get("qk_norm") else AUTO[form]
    model, tokenizer = auto.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    differences, sizes = [], []
    for document in sample_documents(5, seed=3):
        ids = tokenizer(document, return_tensors="pt")["input_ids"][0]
        with torch.no_grad():
            theirs = model(input_ids=ids[None]).logits[0]
        ours = our_logits(checkpoint, ids, form)
        differences.append(float((theirs - ours).abs().max()))
        sizes.append(float(ours.abs().max()))
    # Logits of this size make a small absolute tolerance mean something.
    assert min(sizes) > 1
    assert max(differences) <= 2e-5
    assert 0 < report.max_difference <= 2e-5
    assert report.step == 20


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_every_tensor_is_copied_the_padding_row_too(
    make_checkpoint: Callable[..., Path], tmp_path: Path, form: str
) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "out"
    to_hf(checkpoint, out, form=form, dtype="fp32")
    source = open_checkpoint(checkpoint)

    written = load_file(out / "model.safetensors")
    assert sorted(written) == source.names
    assert all(torch.equal(written[name], source.weight(name)) for name in source.names)
    loaded = AUTO[form].from_pretrained(out)
    pad_row = loaded.get_input_embeddings().weight[loaded.config.pad_token_id].detach()
    assert loaded.config.pad_token_id == 1
    assert torch.equal(pad_row, source.weight("model.embed_tokens.weight")[1])
    assert float(pad_row.abs().max()) > 0


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_bf16_is_rounded_on_disk_and_equals_ours_rounded(
    make_checkpoint: Callable[..., Path], tmp_path: Path, form: str
) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "out"

    report = to_hf(checkpoint, out, form=form, dtype="bf16")

    assert report.max_difference <= 2e-5
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert AUTO[form].from_pretrained(out, dtype="auto").dtype == torch.bfloat16
    ids = torch.arange(3, 60)
    with torch.no_grad():
        theirs = AUTO[form].from_pretrained(out, dtype=torch.float32).eval()(input_ids=ids[None]).logits[0]
    rounded = our_logits(checkpoint, ids, form, rounded_to=torch.bfloat16)
    assert float((theirs - rounded).abs().max()) <= 2e-5
    assert float((rounded - our_logits(checkpoint, ids, form)).abs().max()) > 1e-3


def test_the_forms_differ_in_what_a_position_sees(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    first, changed = torch.arange(3, 40), torch.arange(3, 40)
    changed[-1] = 300
    for form, sees_later in (("bidirectional", True), ("causal", False)):
        to_hf(checkpoint, tmp_path / form, form=form, dtype="fp32")
        model = AUTO[form].from_pretrained(tmp_path / form).eval()
        with torch.no_grad():
            moved = (model(first[None]).logits - model(changed[None]).logits)[0, :-1].abs().max()
        assert bool(moved > 1e-3) == sees_later


def test_configurations_say_what_the_manifest_says(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_checkpoint(rope_theta=500.0, max_position_embeddings=512)
    to_hf(checkpoint, tmp_path / "encoder", form="bidirectional", dtype="fp32")
    to_hf(checkpoint, tmp_path / "decoder", form="causal", dtype="bf16")

    encoder, decoder = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("encoder", "decoder"))

    for config in (encoder, decoder):
        assert config["rope_parameters"] == {"rope_theta": 500.0, "rope_type": "default"}
        assert (config["rope_theta"], config["max_position_embeddings"]) == (500.0, 512)
        assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
        assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (1, None, 0)
        assert "auto_map" not in config
    assert (encoder["architectures"], encoder["dtype"]) == (["EuroBertForMaskedLM"], "float32")
    assert (encoder["mask_token_id"], encoder["classifier_pooling"]) == (2, "mean")
    assert (decoder["architectures"], decoder["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert AutoConfig.from_pretrained(tmp_path / "decoder").rope_parameters["rope_theta"] == 500.0


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_stretched_angles_load_without_a_warning(
    make_checkpoint: Callable[..., Path], tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    to_hf(make_checkpoint(rope_scaling={"rope_type": "linear", "factor": 4.0}), tmp_path / "out", form=form)
    capfd.readouterr()
    angles = AutoConfig.from_pretrained(tmp_path / "out").rope_parameters
    assert angles == {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    assert "Unrecognized keys" not in capfd.readouterr().err


def test_the_encoder_fills_masks_pools_and_takes_a_classifier(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    to_hf(make_checkpoint(), out, form="bidirectional", dtype="fp32")

    fill = pipeline("fill-mask", model=str(out), tokenizer=str(out))
    guesses = fill(f"The old miller {fill.tokenizer.mask_token} the red door.", top_k=3)
    assert len(guesses) == 3
    assert 0 < guesses[0]["score"] <= 1

    tokenizer = AutoTokenizer.from_pretrained(out)
    batch = tokenizer(["My sister.", "Every teacher counts the river."], padding=True, return_tensors="pt")
    assert set(batch) == {"input_ids", "attention_mask"}
    hidden = AutoModel.from_pretrained(out)(**batch).last_hidden_state
    assert hidden.shape == (*batch["input_ids"].shape, 64)
    classifier = AutoModelForSequenceClassification.from_pretrained(out, num_labels=3)
    assert classifier(**batch).logits.shape == (2, 3)


def test_the_tokenizer_cuts_at_the_models_length(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    to_hf(make_checkpoint(max_position_embeddings=16), out, form="bidirectional", dtype="fp32")
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer("My sister remembers the river. " * 20, truncation=True)["input_ids"]) == 16


def test_the_decoder_generates(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    checkpoint = make_checkpoint()
    to_hf(checkpoint, out, form="causal", dtype="fp32")
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    prompt = tokenizer("The captain", return_tensors="pt")

    produced = model.generate(**prompt, max_new_tokens=5, do_sample=False)[0]

    length = prompt["input_ids"].shape[1]
    assert length < len(produced) <= length + 5
    # Greedy generation, through the cache of transformers, is what our causal logits say step by step.
    for end in range(length, len(produced)):
        assert int(our_logits(checkpoint, produced[:end], "causal")[-1].argmax()) == int(produced[end])
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (0, 1)


def test_a_run_folder_means_its_newest_checkpoint(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    make_checkpoint(step=10)
    newest = make_checkpoint(step=30)
    report = to_hf(tmp_path / "run", tmp_path / "deep" / "out", form="causal", dtype="fp32")
    assert (report.checkpoint, report.step, report.out) == (newest, 30, tmp_path / "deep" / "out")
    assert report.files == (
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    )


def test_a_large_model_is_split_and_loads(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.conversion.exporting._LARGEST_FILE", 200_000)
    report = to_hf(make_checkpoint(), tmp_path / "out", form="bidirectional", dtype="fp32")
    assert "model.safetensors.index.json" in report.files
    assert "model-00001-of-00003.safetensors" in report.files
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors = [part for path in (tmp_path / "out").glob("*.safetensors") for part in load_file(path).values()]
    assert index["metadata"]["total_size"] == sum(part.nbytes for part in tensors)


def test_a_tokenizer_without_a_pad_token_gets_the_models(
    make_checkpoint: Callable[..., Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    without = tmp_path / "without-pad"
    shutil.copytree(tokenizer_folder, without)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = without / name
        if path.exists():
            content = {key: value for key, value in json.loads(path.read_text()).items() if key != "pad_token"}
            path.write_text(json.dumps(content))
    assert AutoTokenizer.from_pretrained(without).pad_token is None
    out = tmp_path / "out"
    to_hf(make_checkpoint(tokenizer=without), out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.pad_token_id == json.loads((out / "config.json").read_text())["pad_token_id"]
    assert len(tokenizer(["a", "a b c d"], padding=True)["input_ids"][0]) > 1


@pytest.mark.parametrize(
    ("template", "choices", "end"),
    [
        ("<|pad|> $A", {}, [0]),
        ("<|pad|> $A", {"rules": EncodingRules(add_eod=False)}, []),
        ("<|pad|> $A", {"rules": EncodingRules(add_bos=False)}, [0]),
        ("$A", {"eod": "<|pad|>"}, [1]),
        ("$A <|pad|>", {}, [1, 0]),
        ("$A <|endoftext|>", {"eod": "<|endoftext|>"}, [0, 0]),
    ],
)
def test_an_encoder_frames_texts_as_training_did(
    make_checkpoint: Callable[..., Path],
    tokenizer_folder: Path,
    tmp_path: Path,
    template: str,
    choices: dict[str, Any],
    end: list[int],
) -> None:
    """What documents ended with is neither the tokenizer's own end nor always one token."""
    folder = tmp_path / "framing"
    shutil.copytree(tokenizer_folder, folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = [("<|endoftext|>", 0), ("<|pad|>", 1)]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = tokenization.load(folder, **choices)
    tokenizer.save(tmp_path / "kept")
    to_hf(make_checkpoint(tokenizer=tmp_path / "kept"), tmp_path / "out")

    exported = AutoTokenizer.from_pretrained(tmp_path / "out")("the river").input_ids
    assert exported == tokenizer.encode_batch(["the river"])[0].tolist()
    plain = backend.encode("the river", add_special_tokens=False).ids
    assert exported[exported.index(plain[0]) :] == [*plain, *end]
    assert not (tmp_path / "out" / "encoding.json").exists()


def test_an_ordinary_token_is_not_named_as_pad(
    make_checkpoint: Callable[..., Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    """With neither pad nor eos the model's pad id is 0, "!" in many vocabularies: texts with it would change."""
    nameless = tmp_path / "nameless"
    nameless.mkdir()
    content = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    content["added_tokens"] = content["added_tokens"][2:]
    vocabulary = content["model"]["vocab"]
    texts = {token_id: text for text, token_id in vocabulary.items()}
    vocabulary[texts[0]], vocabulary["a"] = vocabulary["a"], 0
    (nameless / "tokenizer.json").write_text(json.dumps(content))
    (nameless / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<|mask|>"})
    )
    ids = AutoTokenizer.from_pretrained(nameless)("a banana").input_ids
    assert 0 in ids
    vocabulary = Vocabulary(size=384, mask_id=2, pad_id=0, bos_id=None, eos_id=None, special_ids=(2,))

    report = to_hf(make_checkpoint(tokenizer=nameless, vocabulary=vocabulary), tmp_path / "out")

    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported("a banana").input_ids == ids
    assert (exported.pad_token, exported.all_special_tokens) == ("<|mask|>", ["<|mask|>"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == 2
    assert any("pad id 0 is an ordinary token" in note for note in report.notes)
