"""Tables of proofs in pages: what they say of where they were made, and their place between two markers."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def made_by(module: str, *, packages: Sequence[str]) -> str:
    """Machine, commit, versions and command, as the beginning of a sentence."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return (
        f"Made on {os.cpu_count()} cores ({platform.machine()}), commit {_commit()}, {versions} by `python -m {module}`"
    )


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
