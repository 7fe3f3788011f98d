"""What cannot be converted: one message, and nothing at the place of the result."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from tests.support.hf_decoders import edit_tensors
from toolkit.conversion import exporting, forms, parity, to_hf
from toolkit.core.errors import CheckpointError, ToolkitError, UserError
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.testing.models import MODEL_OPTIONS


def left_beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith((".", out.name)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_place_that_holds_something_is_refused_an_empty_folder_is_not(
    make_checkpoint: Callable[..., Path], out: Path
) -> None:
    checkpoint = make_checkpoint()
    out.mkdir()
    to_hf(checkpoint, out, form="causal", dtype="fp32")
    before = sorted(out.iterdir())
    with pytest.raises(UserError, match="out already exists"):
        to_hf(checkpoint, out, form="causal", dtype="fp32")
    assert sorted(out.iterdir()) == before
    with pytest.raises(UserError, match=r"config\.json already exists"):
        to_hf(checkpoint, out / "config.json", form="causal", dtype="fp32")


def test_an_empty_folder_that_cannot_be_replaced_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    for out, kind in ((tmp_path / "link", "a link"), (Path(), "the working directory")):
        with pytest.raises(UserError, match=f"is {kind}, which a new folder cannot replace"):
            to_hf(tmp_path / "no-checkpoint", out)


def test_unknown_words_are_refused_with_the_known_ones(make_checkpoint: Callable[..., Path], out: Path) -> None:
    with pytest.raises(UserError, match=r"unknown value 'prefix'. Choose one of: bidirectional, causal"):
        to_hf(make_checkpoint(), out, form="prefix", dtype="fp32")
    with pytest.raises(UserError, match=r"unknown value 'fp16'. Choose one of: fp32, bf16"):
        to_hf(make_checkpoint(), out, form="causal", dtype="fp16")


def test_a_class_that_an_older_transformers_has_not_is_named(
    make_checkpoint: Callable[..., Path], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint(**MODEL_OPTIONS["ultrabert"])
    monkeypatch.delitem(CONFIG_MAPPING._mapping, "ultrabert")
    with pytest.raises(UserError, match=r"transformers 5\.\S+ does not know ultrabert.*\n.*pip install --upgrade"):
        to_hf(checkpoint, out)
    assert left_beside(out) == []


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
@pytest.mark.parametrize("fault", ["angles", "epsilon", "a norm", "one weight", "attention", "not a number"])
def test_a_model_that_computes_something_else_is_an_error_and_nothing_is_left(
    make_checkpoint: Callable[..., Path], out: Path, monkeypatch: pytest.MonkeyPatch, form: str, fault: str
) -> None:
    """Faults of a converter, or of our model, that the check must see."""
    checkpoint = make_checkpoint()
    configuration, compare = forms.configuration, parity.compare_logits

    def other_configuration(*arguments: object, **named: object) -> object:
        config = configuration(*arguments, **named)  # type: ignore[arg-type]
        if fault == "angles":
            config.rope_parameters["rope_theta"] = 9_000.0
        if fault == "epsilon":
            config.rms_norm_eps = 1e-4
        return config

    def other_weights(stock: parity.StockModel, native: parity.NativeModel, **named: object) -> parity.Parity:
        def read(name: str) -> torch.Tensor:
            weight = native.read(name).clone()
            if (fault, name) == ("a norm", "model.norm.weight"):
                weight.fill_(1)
            if (fault, name) == ("one weight", "model.layers.1.mlp.up_proj.weight"):
                weight[3, 5] += 0.05
            if (fault, name) == ("not a number", "lm_head.weight"):
                weight[7, 7] = float("nan")
            return weight

        if fault == "attention":
            other = {"bidirectional": AttentionKind.CAUSAL, "causal": AttentionKind.BIDIRECTIONAL}[form]
            named["attention"] = other
        return compare(stock, parity.NativeModel(native.encoder, read), **named)  # type: ignore[arg-type]

    monkeypatch.setattr(exporting, "configuration", other_configuration)
    monkeypatch.setattr(exporting, "compare_logits", other_weights)
    with pytest.raises(ToolkitError, match=r"our logits differ .* This is a bug\.") as caught:
        to_hf(checkpoint, out, form=form, dtype="fp32")
    assert caught.value.exit_code == 1
    assert left_beside(out) == []


def test_a_folder_that_does_not_load_whole_is_an_error(
    make_checkpoint: Callable[..., Path], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_whole = parity.open_stock

    def without_a_tensor(folder: Path, **named: object) -> parity.StockModel:
        edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
        return open_whole(folder, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(exporting, "open_stock", without_a_tensor)
    with pytest.raises(ToolkitError, match=r"does not load .* whole: .*lm_head\.weight"):
        to_hf(make_checkpoint(), out, form="causal", dtype="fp32")
    assert left_beside(out) == []


def test_a_full_disk_is_told_and_nothing_is_left(
    make_checkpoint: Callable[..., Path], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint = make_checkpoint()
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UserError, match=r"out cannot be written: .*No space left on device"):
        to_hf(checkpoint, out, form="bidirectional", dtype="fp32")
    assert left_beside(out) == []


def test_an_encoder_without_a_mask_token_is_refused_a_decoder_is_not(
    make_checkpoint: Callable[..., Path], out: Path
) -> None:
    vocabulary = Vocabulary(size=384, mask_id=None, pad_id=1, bos_id=None, eos_id=0, special_ids=(0, 1))
    checkpoint = make_checkpoint(vocabulary=vocabulary)
    with pytest.raises(CheckpointError, match="needs a mask token, and the tokenizer of this checkpoint has none"):
        to_hf(checkpoint, out, form="bidirectional", dtype="fp32")
    assert left_beside(out) == []
    to_hf(checkpoint, out, form="causal", dtype="fp32")
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"num_hidden_layers": 3}, "holds other parameters than its settings.model, such as model.layers.2"),
        ({"intermediate_size": 64}, r"model\.layers\.0\.mlp\.gate_proj\.weight has shape \(128, 64\)"),
        ({"vocab_size": None}, r"does not say settings\.model\.vocab_size"),
        ({"vocab_size": 100}, "the tokenizer gives the id"),
        (None, r"manifest\.json does not describe a model: settings\.model\.hidden_size is missing"),
    ],
)
def test_settings_that_do_not_fit_the_tensors_are_refused(
    make_checkpoint: Callable[..., Path], out: Path, recorded: dict[str, object] | None, message: str
) -> None:
    """And folders that were made for the result go with it."""
    size = {} if recorded is None else {key: 100 for key in ("vocab_size",) if key in recorded}
    run = {"model": {}} if recorded is None else {}
    checkpoint = make_checkpoint(recorded=recorded, run=run, **size)
    (out.parent / "kept").mkdir()
    for place in (out, out.parent / "kept" / "new" / "newer" / "out"):
        with pytest.raises(CheckpointError, match=message):
            to_hf(checkpoint, place, form="causal", dtype="fp32")
    assert left_beside(out) == []
    assert list((out.parent / "kept").iterdir()) == []


def test_the_tolerance_is_the_projects_and_grows_with_the_logits() -> None:
    assert parity.Parity(max_difference=0, max_logit=0.9).tolerance == 2e-5
    assert parity.Parity(max_difference=0, max_logit=30).tolerance == pytest.approx(6e-4)
    assert parity.Parity(max_difference=0, max_logit=100, rounding=0.05).tolerance == pytest.approx(0.4)
    assert parity.Parity(max_difference=0, max_logit=100, rounding=0.5).tolerance == pytest.approx(1.0)
    assert parity.Parity(max_difference=1.9e-5, max_logit=1).is_within_tolerance
    assert not parity.Parity(max_difference=2.1e-5, max_logit=1).is_within_tolerance
    assert not parity.Parity(max_difference=float("nan"), max_logit=1).is_within_tolerance


def test_rounding_is_measured_on_every_text_that_is_compared(monkeypatch):
    """In SmolLM2 the first words of a short text round ten times as badly as a long one."""
    errors = {4: 0.1, 2: 0.5}

    def logits(stock, inputs, dtype):
        return (torch.full((ids.shape[1], 3), errors[ids.shape[1]] * (dtype is torch.float32)) for ids, _ in inputs)

    monkeypatch.setattr(parity, "_stock_logits", logits)
    inputs = [(torch.zeros(1, length, dtype=torch.long), None) for length in errors]
    assert parity._rounding_error(None, inputs) == pytest.approx(0.5)


def test_the_checks_sentences_have_different_lengths() -> None:
    lengths = [len(sentence.split()) for sentence in parity.SENTENCES]
    assert (min(lengths), max(lengths)) == (3, 147)
    assert len(set(lengths)) == len(lengths)


@pytest.mark.parametrize("role", ["mask_id", "pad_id", "bos_id", "eos_id"])
def test_a_special_id_that_the_model_does_not_have_is_named(
    make_checkpoint: Callable[..., Path], out: Path, role: str
) -> None:
    ids = {"mask_id": 2, "pad_id": 1, "bos_id": None, "eos_id": 0} | {role: 5000}
    checkpoint = make_checkpoint(vocabulary=Vocabulary(size=5001, special_ids=(0, 1, 2), **ids))
    with pytest.raises(CheckpointError, match=f"gives {role}=5,000, and the model has 384 entries"):
        to_hf(checkpoint, out)
    assert left_beside(out) == []
