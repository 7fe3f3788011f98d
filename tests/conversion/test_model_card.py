import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard

from tests.support.hf_decoders import save_decoder
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf, to_hf
from toolkit.conversion.card import model_card
from toolkit.conversion.forms import ExportForm
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import get_task


def _card(
    make_checkpoint: Callable[..., Path], settings: dict[str, Any] | None = None, *, name: str = "e",
    architecture: str = "EuroBertForMaskedLM",
) -> str:  # fmt: skip
    """Of an encoder; `settings` stand in for those of its run."""
    manifest = open_checkpoint(make_checkpoint()).manifest
    manifest = manifest.model_copy(update={"settings": {**manifest.settings, **(settings or {})}})
    return model_card(manifest, ExportForm.BIDIRECTIONAL, name=name, architecture=architecture)


def test_the_card_tells_recipe_data_losses_and_use(make_checkpoint: Callable[..., Path]) -> None:
    card = _card(make_checkpoint, name="wiki-encoder")

    written = ModelCard(card).data
    assert (written.library_name, written.pipeline_tag, written.base_model) == ("transformers", "fill-mask", None)
    assert written.tags == ["encoder-pretraining-toolkit"]
    assert "---\n\n# wiki-encoder\n" in card
    for row in (
        "| updates | 20 of 40 |",
        "| tokens seen | 20,000 |",
        "| parameters | 123,200 |",
        "| digest of the rows | `",
        "sequence_length = 128",
        "peak = 0.001",
        "| loss, mlm | 4.2500 nats per token |",
        "padding token (id 1) no gradient",
    ):
        assert row in card
    # Where the training machine keeps its files is nobody's business.
    assert "someone" not in card


def test_the_card_has_the_recipe_as_a_run_file(make_checkpoint: Callable[..., Path]) -> None:
    """Phases with their objectives' settings, ramps and mixtures included; corpora by their names alone."""
    ramp = {"mask_ratio": {"start": 0.4, "stop": 0.15, "shape": "linear"}}
    mix = [{"objective": "clm", "share": 0.25}, {"objective": "mlm", "share": 0.75, "weight": 2.0}]
    changed = {"schedule": [{"mix": mix, "steps": 40, "lr": None}], "objectives": {"mlm": ramp, "span": {}}}
    card = _card(make_checkpoint, changed)
    recipe = tomllib.loads(card.partition("```toml\n")[2].partition("```")[0])
    assert recipe["schedule"] == [{"mix": mix, "steps": 40}]
    assert recipe["objectives"] == {"mlm": ramp}
    assert recipe["data"]["train"] == "wiki"


def test_an_encoder_of_a_causal_class_names_the_version_that_it_was_checked_with(
    make_checkpoint: Callable[..., Path],
) -> None:
    """A version that does not know `is_causal: false` would load it as a decoder, without a word."""
    card = _card(make_checkpoint, architecture="Qwen3ForCausalLM")
    assert f"stock transformers (checked with {transformers.__version__})" in card
    assert f"checked with transformers {transformers.__version__};" in card
    assert ">= 5.3" not in card


def test_the_example_in_the_card_runs(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    for form, result in (("bidirectional", "logits"), ("causal", "tokens")):
        out = tmp_path / form
        to_hf(make_checkpoint(), out, form=form, dtype="fp32")
        code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
        names: dict[str, object] = {}
        exec(code.replace(f'"{form}"', repr(str(out))), names)
        assert names[result].shape[0] == 1  # type: ignore[attr-defined]


def _run_of(kind: str) -> dict[str, object]:
    """CLM for 10 steps, then an objective of a kind, under a name of its own."""
    schedule = [{"objective": "clm", "steps": 10}, {"objective": "both-sides", "steps": 30}]
    return {"objectives": {"clm": {"kind": "clm"}, "both-sides": {"kind": kind}}, "schedule": schedule}


def test_an_encoder_that_mntp_trained_last_says_that_fill_mask_is_off_by_one(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    report = to_hf(make_checkpoint(run=_run_of("mntp")), tmp_path / "out", dtype="fp32")
    assert report.architecture == "EuroBertForMaskedLM"
    (note,) = [note for note in report.notes if "fill-mask" in note]
    assert "after it, so the fill-mask pipeline is off by one" in note
    card = (tmp_path / "out/README.md").read_text()
    assert "pipeline_tag: feature-extraction\n" in card
    assert "with a head that predicts a masked token at the position before it, as `EuroBertForMaskedLM`" in card
    assert "(`mntp`): its logits at a position are those of the token\nafter it" in card
    names: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace('"out"', repr(str(tmp_path / "out"))), names)
    plain = names["model"](**names["inputs"]).logits
    assert torch.equal(names["logits"][:, 1:], plain[:, :-1])


@pytest.mark.parametrize(
    ("kind", "step", "options"),
    [
        ("mntp", 10, {}),
        ("mntp", 20, {"form": "causal"}),
        ("mntp", 20, {"sentence_transformers": True}),
        ("span", 20, {}),
        ("diffusion", 20, {}),
    ],
)
def test_other_heads_are_where_their_class_expects_them(
    make_checkpoint: Callable[..., Path], tmp_path: Path, kind: str, step: int, options: dict[str, Any]
) -> None:
    """One from before its first step of mntp, a decoder, an encoder without its head, and those that look like MLM."""
    report = to_hf(make_checkpoint(step, run=_run_of(kind)), tmp_path / "out", **options)
    assert not [note for note in report.notes if "off by one" in note]
    card = (tmp_path / "out/README.md").read_text()
    assert ("pipeline_tag: fill-mask\n" in card) is (not options)
    assert "`mntp`" not in card
    assert "roll" not in card


def test_a_manifest_of_a_checkpoint_without_a_run_still_has_a_card(make_checkpoint: Callable[..., Path]) -> None:
    manifest = open_checkpoint(make_checkpoint()).manifest
    bare = manifest.model_copy(update={"settings": {"model": manifest.settings["model"]}})
    assert "| updates | 20 |" in model_card(bare, ExportForm.CAUSAL, name="bare", architecture="LlamaForCausalLM")


def test_the_card_names_the_model_of_the_hub_that_it_is_made_from(make_checkpoint: Callable[..., Path]) -> None:
    manifest = open_checkpoint(make_checkpoint()).manifest
    for model, base in (("someone/decoder", "someone/decoder"), ("decoder", None)):
        made = manifest.model_copy(update={"origin": {"model": model, "license": "mit", "language": "en de"}})
        data = ModelCard(model_card(made, ExportForm.CAUSAL, name="a", architecture="LlamaForCausalLM")).data
        assert (data.base_model, data.license, data.language) == (base, "mit", ["en", "de"])


def test_license_and_language_of_a_model_are_those_of_what_is_made_from_it(tmp_path: Path) -> None:
    save_decoder("qwen3", tmp_path / "model")
    (tmp_path / "model/README.md").write_text("---\nlicense: mit\nlanguage:\n- en\n- de\n---\n")
    from_hf(tmp_path / "model", tmp_path / "imported")
    to_hf(tmp_path / "imported", tmp_path / "encoder")
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nthe old miller\tx\na fox\ty\n")
    settings = get_task("sc").Settings(steps=1, batch_rows=2)
    finetune("sc", tmp_path / "encoder", output=tmp_path / "out", settings=settings, train=rows, test=rows)
    for folder in ("encoder", "out/model"):
        data = ModelCard.load(tmp_path / folder / "README.md").data
        assert (data.license, data.language) == ("mit", ["en", "de"])
