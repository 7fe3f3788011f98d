import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hf_decoders import save_decoder
from toolkit.cli import main
from toolkit.cli.convert import command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["toolkit", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run


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


def test_help_names_both_directions(toolkit: Run) -> None:
    code, output, _ = toolkit("convert", "--help")
    assert code == 0
    assert all(option in output for option in ("--to-hf", "--from-hf", "--mask-token", "--tokenizer"))


def test_defaults_are_the_encoder_in_fp32(
    make_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(str(make_checkpoint()), tmp_path / "out", to_hf=True)
    assert "as a bidirectional model in fp32:" in capsys.readouterr().out


def test_what_to_do_with_an_import_can_be_pasted(toolkit: Run, tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "decoder")
    code, output, _ = toolkit("convert", "--from-hf", tmp_path / "decoder", tmp_path / "two words")
    assert code == 0
    prepare, train = (shlex.split(line) for line in output.rpartition("Next:\n")[2].splitlines())
    assert prepare[prepare.index("--tokenizer") + 1] == str(tmp_path / "two words")
    assert prepare[-2:] == ["--holdout", "0.001"]
    assert f"init.from={tmp_path / 'two words'}" in train
    assert train[-1] == "data.validation=data/mine/holdout"
