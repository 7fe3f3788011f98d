"""The example of a published decoder that is continued as an encoder: its scripts, without what takes long."""

import json
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.sources import ROOT

FOLDER = ROOT / "docs/examples/smollm2"
GPT2 = {"type": "ByteLevel", "add_prefix_space": False}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
# The first download breaks off.
HF = """#!/usr/bin/env bash
mkdir -p "$4" && echo "$@" >> "$4/calls"
test "$(wc -l < "$4/calls")" -gt 1
"""


@pytest.mark.parametrize(
    ("rules", "before", "after"),
    [
        ("smollm", GPT2, DIGITS),
        ("smollm", DIGITS, DIGITS),
        ("smollm", None, None),
        ("gpt-2", GPT2, GPT2),
        (None, GPT2, GPT2),
    ],
)
def test_digits_are_split_in_smollm_alone(tmp_path: Path, rules: str | None, before: Any, after: Any) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"pre_tokenizer": before}))
    runpy.run_path(str(FOLDER / "decoder_from_gguf.py"))["split_digits"](file, rules=rules)
    assert json.loads(file.read_text()) == {"pre_tokenizer": after}


def test_after_a_download_that_broke_off_the_same_command_goes_on(tmp_path: Path) -> None:
    for name in ("sst2/train.tsv", "sst2/dev.tsv", *(f"conll2003/eng.{part}" for part in ("train", "testa", "testb"))):
        (tmp_path / "labelled" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "labelled" / name).write_text("text\tlabel\n")
    programs, out = tmp_path / "bin", tmp_path / "out"
    programs.mkdir()
    for name, text in {"hf": HF, "toolkit": "#!/bin/sh\n", "python": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    given = ["owner/decoder", "owner/minilm", tmp_path, tmp_path / "labelled", out]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    codes = []
    for _ in range(3):
        codes.append(subprocess.run([FOLDER / "run.sh", *given], env=environment, capture_output=True).returncode)
        # What a user has changed stays.
        (out / "study.toml").write_text("changed")
    assert codes == [1, 0, 0]
    assert len((out / "models/minilm/calls").read_text().splitlines()) == 2
    assert ((out / "study.toml").read_text(), (out / "grid.toml").exists()) == ("changed", True)
