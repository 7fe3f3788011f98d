"""Python in a process of its own, whose output is kept."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_apart(
    *words: object, folder: Path | None = None, environment: Mapping[str, str] | None = None, seconds: float = 300
) -> "subprocess.CompletedProcess[str]":
    """`python WORDS` in a folder (here), with these variables and no others (those of this process)."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, timeout=seconds, capture_output=True, text=True, check=False
    )
