"""The models that arXiv 2507.00994 published: EuroBERTs by other names, with code beside them that is not run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from tests.support.grids import run_cells_here
from tests.support.hf_decoders import TOKENS, edit_json, edit_tensors, save_decoder
from tests.support.text import sample_documents
from toolkit.conversion import from_hf, to_hf
from toolkit.core.errors import CheckpointError
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

_BASE = 250_000.0


def _save(folder: Path, *, has_head: bool, **changes: Any) -> PreTrainedModel:
    """A folder as `SLModel.save_pretrained` of transformers 4.49 wrote it, or with a head; the same as EuroBERT."""
    model = save_decoder("eurobert", folder, rope_parameters={"rope_type": "default", "rope_theta": _BASE})
    config = json.loads((folder / "config.json").read_text())
    theirs = {
        "model_type": "sl_model",
        "architectures": ["SLModel"],
        "auto_map": {"AutoConfig": "configuration_sl_model.SLModelConfig", "AutoModel": "modeling_sl_model.SLModel"},
        "classifier_pooling": "mean",
        "retrieval_pooling": "mean",
        "is_causal": False,
        "rope_theta": _BASE,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "use_cache": False,
    }
    kept = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    (folder / "config.json").write_text(json.dumps(kept | theirs | changes))
    for name in ("configuration_sl_model.py", "modeling_sl_model.py"):
        (folder / name).write_text("raise SystemExit('the code of a model was run')\n")
    if not has_head:
        edit_tensors(folder, _without_head)
    return model


def _without_head(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["lm_head.weight"]
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def _largest_difference(one: Any, other: Any, folder: Path, key: str) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(sample_documents(4, seed=5), return_tensors="pt", padding=True, truncation=True, max_length=64)
    is_real = batch["attention_mask"].bool()
    with torch.no_grad():
        ours, theirs = (getattr(model.eval()(**batch), key)[is_real][:, :TOKENS] for model in (one, other))
    assert theirs.abs().max() > 1
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_with_a_head_goes_out_as_eurobert_with_the_same_logits(is_causal: bool, tmp_path: Path) -> None:
    native = _save(tmp_path / "model", has_head=True, is_causal=is_causal)
    report = from_hf(tmp_path / "model", tmp_path / "imported")
    assert report.family == "eurobert"
    assert report.settings.rope_theta == _BASE
    assert report.max_difference <= HUGGING_FACE_LOGITS
    assert "code of its own (auto_map) is not run: read as transformers' own eurobert" in report.changes
    assert ("is_causal: true in config.json is left out: read as an encoder" in report.changes) is is_causal
    to_hf(tmp_path / "imported", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "eurobert"
    assert not config.keys() & {"auto_map", "is_causal", "retrieval_pooling"}
    out = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert type(out).__name__ == "EuroBertForMaskedLM"
    assert _largest_difference(out, native, tmp_path / "out", "logits") <= HUGGING_FACE_LOGITS


def test_one_without_a_head_gets_a_new_one(tmp_path: Path) -> None:
    native = _save(tmp_path / "model", has_head=False)
    with pytest.raises(CheckpointError, match=r"has no complete language-model head(.|\n)*--head new"):
        from_hf(tmp_path / "model", tmp_path / "imported")
    from_hf(tmp_path / "model", tmp_path / "imported", head="new")
    to_hf(tmp_path / "imported", tmp_path / "out")
    out = AutoModel.from_pretrained(tmp_path / "out")
    difference = _largest_difference(out, native.model, tmp_path / "out", "last_hidden_state")
    assert difference <= HUGGING_FACE_LOGITS


def test_values_that_its_file_leaves_out_are_those_of_its_own_class(tmp_path: Path) -> None:
    _save(tmp_path / "model", has_head=True)
    edit_json(tmp_path / "model" / "config.json", without=("rope_theta", "rope_scaling", "auto_map"))
    report = from_hf(tmp_path / "model", tmp_path / "imported")
    assert report.settings.rope_theta == _BASE


def test_it_is_fine_tuned_predicted_with_and_scored(
    toolkit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bare for fine-tuning, as its authors published it, and with a head for what needs one."""
    _save(tmp_path / "bare", has_head=False, is_causal=True)
    _save(tmp_path / "whole", has_head=True)
    texts = sample_documents(6, seed=1)
    rows = tmp_path / "rows.tsv"
    lines = (f"{text.splitlines()[0][:40]}\t{number % 2}\n" for number, text in enumerate(texts))
    rows.write_text("text\tlabel\n" + "".join(lines))
    options = ["--train", rows, "--validation", rows, "--test", rows]
    tuned = tmp_path / "tuned"
    assert toolkit("finetune", "sc", tmp_path / "bare", *options, "--steps", "2", "--output", tuned)[0] == 0
    config = json.loads((tuned / "model" / "config.json").read_text())
    assert (config["model_type"], config["classifier_pooling"]) == ("eurobert", "mean")
    assert not config.keys() & {"auto_map", "is_causal"}
    assert toolkit("predict", tuned / "model", rows, "--output", tmp_path / "predicted")[0] == 0
    first, second = (tmp_path / name / "predictions.jsonl" for name in ("tuned", "predicted"))
    assert first.read_text().count("\n") == second.read_text().count("\n") == 6

    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"sentence_good": "The river runs.", "sentence_bad": "The river run."}) + "\n")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "whole")
    tokens.mask_token = tokens.convert_ids_to_tokens(5)
    tokens.save_pretrained(tmp_path / "whole")
    assert toolkit("score", tmp_path / "whole", "--pairs", pairs, "--output", tmp_path / "scored")[0] == 0
    assert json.loads((tmp_path / "scored" / "result.json").read_text())["test"]["accuracy"] in (0.0, 1.0)

    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'grid = {{ dir = "{tmp_path}/grid", seeds = [0], learning_rates = [1e-3], steps = 2 }}\n'
        f'[[model]]\nname = "theirs"\npath = "{tmp_path}/bare"\n'
        f'[[task]]\nname = "rows"\nkind = "sc"\ntrain = "{rows}"\nvalidation = "{rows}"\ntest = "{rows}"\n'
    )
    run_cells_here(monkeypatch)
    assert toolkit("grid", grid)[0] == 0
    assert len((tmp_path / "grid" / "results.jsonl").read_text().splitlines()) == 1


def test_weights_are_read_as_they_are(tmp_path: Path) -> None:
    _save(tmp_path / "model", has_head=True)
    from_hf(tmp_path / "model", tmp_path / "imported")
    to_hf(tmp_path / "imported", tmp_path / "out")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "out"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        # A mask's row is made where the tokenizer names none.
        assert torch.equal(tensor, second[name][: len(tensor)]), name
