import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.cli.convert import command
from toolkit.conversion.forms import ExportDtype, ExportForm
from toolkit.core.errors import NotAvailableError, UserError


def toolkit(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = "from toolkit.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_converts_and_reports(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "out"
    done = toolkit("convert", "--to-hf", checkpoint, out, "--form", "causal", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert f"{checkpoint} (step 20) as a causal model in bf16:" in done.stdout
    assert "checked in transformers: logits up to" in done.stdout
    assert f"wrote {out}: README.md, config.json," in done.stdout


def test_a_missing_checkpoint_is_one_message_and_exit_2(tmp_path: Path) -> None:
    done = toolkit("convert", "--to-hf", tmp_path / "nothing", tmp_path / "out")
    assert done.returncode == 2
    assert "nothing is not a folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_hides_what_is_not_built() -> None:
    done = toolkit("convert", "--help")
    assert done.returncode == 0
    assert "--to-hf" in done.stdout
    assert "--from-hf" not in done.stdout
    assert "--mask-token" not in done.stdout


def test_defaults_are_the_encoder_in_fp32(
    make_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(str(make_checkpoint()), tmp_path / "out", to_hf=True)
    assert "as a bidirectional model in fp32:" in capsys.readouterr().out


def test_the_other_direction_and_none_are_refused(tmp_path: Path) -> None:
    words = {"form": ExportForm.CAUSAL, "dtype": ExportDtype.FP32}
    with pytest.raises(NotAvailableError, match="toolkit convert --from-hf is not available yet"):
        command("model", tmp_path, from_hf=True, **words)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a direction: toolkit convert --to-hf CHECKPOINT OUT"):
        command("model", tmp_path, **words)  # type: ignore[arg-type]
