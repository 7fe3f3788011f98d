import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from tests.support.hf_decoders import save_decoder
from tests.support.text import sample_documents

Run = Callable[..., tuple[int, str, str]]


def test_the_command_converts_and_reports(toolkit: Run, make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "out"
    code, output, _ = toolkit("convert", "--to-hf", checkpoint, out, "--form", "causal", "--dtype", "bf16")
    assert code == 0
    assert f"{checkpoint} (step 20) as a causal model in bf16:" in output
    assert "compared in transformers: logits up to" in output
    assert f"wrote {out}: README.md, config.json," in output


def test_an_encoder_in_the_class_of_a_decoder(
    toolkit: Run, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "out"
    code, output, _ = toolkit("convert", "--to-hf", checkpoint, out, "--architecture", "llama")
    assert code == 0
    assert f"{checkpoint} (step 20) as a bidirectional model in fp32:\n  LlamaForCausalLM\n" in output
    assert "is_causal: false in config.json makes attention bidirectional" in output


@pytest.mark.parametrize("family", ["llama 3", "modernbert"])
def test_what_to_do_with_an_import_can_be_pasted(
    toolkit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """The text prepared, and the run shown as far as its first step."""
    monkeypatch.chdir(tmp_path)
    save_decoder(family, Path("model"))
    code, output, _ = toolkit("convert", "--from-hf", "model", "two words")
    assert code == 0
    prepare, train = (shlex.split(line)[1:] for line in output.rpartition("Next:\n")[2].splitlines())
    Path("text.txt").write_text("\n\n".join(sample_documents(400)), encoding="utf-8")
    prepare[prepare.index("YOUR_TEXT")] = "text.txt"
    # Of so few documents, one in a thousand is none.
    prepare[prepare.index("0.001")] = "0.1"
    assert toolkit(*prepare, "--txt-documents", "paragraph")[0] == 0
    code, output, errors = toolkit(*train, "--set", "data.sequence_length=64", "--dry-run")
    assert (code, errors) == (0, "")
    assert "two words" in output


@pytest.mark.parametrize("family", ["llama 3", "modernbert"])
def test_what_to_do_with_a_merge_can_be_pasted(toolkit: Run, tmp_path: Path, family: str) -> None:
    save_decoder(family, tmp_path / "model")
    parents = [tmp_path / "one", tmp_path / "other"]
    assert [toolkit("convert", "--from-hf", tmp_path / "model", parent)[0] for parent in parents] == [0, 0]
    code, output, _ = toolkit("merge", *parents, "--output", tmp_path / "two words")
    assert code == 0
    convert = shlex.split(output.rpartition("Next:\n")[2])[1:]
    convert[convert.index("OUT")] = str(tmp_path / "out")
    assert toolkit(*convert)[0] == 0
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config.model_type in ("eurobert", "modernbert")
