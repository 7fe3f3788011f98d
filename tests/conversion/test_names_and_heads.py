"""Models come in as transformers reads them: whatever stands in front of names, with another head, or without one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from tests.support.hf_decoders import edit_tensors, save_decoder
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, to_hf
from toolkit.core.errors import CheckpointError
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

CLASSIFIERS = {
    "eurobert": "EuroBertForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
    "ultrabert": "UltrabertForSequenceClassification",
}


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    opened = open_checkpoint(checkpoint)
    return {name: opened.weight(name) for name in opened.names}


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, of: str = "") -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys() if name.startswith(of))


def _saved(auto: Any, model: Path, out: Path, **options: Any) -> Path:
    auto.from_pretrained(model, **options).save_pretrained(out)
    for file in model.glob("tokenizer*"):
        shutil.copy(file, out)
    return out


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("family", ["smollm", "eurobert", "modernbert", "ultrabert"])
def test_what_a_wrapper_put_in_front_of_all_names_is_left_out_and_told(
    family: str, wrapper: str, tmp_path: Path
) -> None:
    save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "plain")

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"{wrapper}{name}"] = tensors.pop(name)

    edit_tensors(tmp_path / "model", wrap)
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert f"names of tensors: {wrapper} in front of each is left out" in report.changes
    assert report.max_difference <= HUGGING_FACE_LOGITS * max(1, report.max_logit)
    assert _same(_tensors(tmp_path / "plain"), _tensors(tmp_path / "out"))


def test_a_tensor_by_two_names_is_refused(tmp_path: Path) -> None:
    save_decoder("smollm", tmp_path / "model")
    edit_tensors(tmp_path / "model", lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"model holds both model\.norm\.weight and norm\.weight, .*\n.*Remove"):
        from_hf(tmp_path / "model", tmp_path / "out")


@pytest.mark.parametrize("family", ["smollm", "qwen2", "qwen3", "eurobert", "modernbert", "ultrabert"])
def test_the_bare_class_has_no_head_and_none_is_asked_where_it_is_tied(family: str, tmp_path: Path) -> None:
    save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "whole")
    bare = _saved(AutoModel, tmp_path / "model", tmp_path / "bare")
    whole = _tensors(tmp_path / "whole")
    if family in ("smollm", "qwen2"):
        assert from_hf(bare, tmp_path / "out").max_difference <= HUGGING_FACE_LOGITS * 100
        assert _same(whole, _tensors(tmp_path / "out"))
        return
    with pytest.raises(
        CheckpointError, match=r"bare has no complete language-model head: .*\.(weight|bias) missing.*\n.*--head new"
    ):
        from_hf(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = from_hf(bare, tmp_path / "out", head="new")
    assert any(change.startswith("head: first values for ") for change in report.changes)
    found = _tensors(tmp_path / "out")
    assert _same(whole, found, of="model.")
    assert found.keys() == whole.keys()
    # Small first values, whatever the head was before; a mask's row is the mean of theirs.
    assert found["lm_head.weight" if family != "modernbert" else "head.dense.weight"].std() < 0.2
    # It is written and read as any other.
    to_hf(tmp_path / "out", tmp_path / "encoder")


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_the_head_of_a_task_is_left_out_and_told(family: str, tmp_path: Path) -> None:
    save_decoder(family, tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "whole")
    classifier = _saved(AutoModelForSequenceClassification, tmp_path / "model", tmp_path / "classifier", num_labels=3)
    report = from_hf(classifier, tmp_path / "out", head="new")
    assert any(change.startswith(f"the head of {CLASSIFIERS[family]} is left out: ") for change in report.changes)
    whole, found = _tensors(tmp_path / "whole"), _tensors(tmp_path / "out")
    assert _same(whole, found, of="model.")
    assert found.keys() == whole.keys()


def test_a_head_that_is_whole_stays(tmp_path: Path) -> None:
    save_decoder("eurobert", tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "plain")
    report = from_hf(tmp_path / "model", tmp_path / "out", head="new")
    assert "head: the model's own, which is whole; nothing is new" in report.changes
    assert _same(_tensors(tmp_path / "plain"), _tensors(tmp_path / "out"))
