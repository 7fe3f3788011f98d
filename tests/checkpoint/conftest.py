from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoints import states_of, write_checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    (folder / "more").mkdir(parents=True)
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "more" / "notes.txt").write_text("kept")
    return folder


@pytest.fixture
def write(root: Path, tokenizer_folder: Path) -> Callable[..., Path]:
    """Writes the checkpoint of a step; `num_parts` and `states` may be given."""

    def write(step: int, **changes: object) -> Path:
        arguments = {"states": states_of(step), "tokenizer_folder": tokenizer_folder} | changes
        return write_checkpoint(root, step, **arguments)  # type: ignore[arg-type]

    return write
