import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.text import tiny_tokenizer
from toolkit.preprocess import tokenizer_checks
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.summary import PreprocessResult


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def no_text_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast backend is used for little text too: it is proven for each tokenizer, which takes seconds."""
    monkeypatch.setattr(tokenizer_checks, "_SHORT_CHARACTERS", 0)


@pytest.fixture
def prepare(tokenizer_folder: Path, tmp_path: Path) -> Callable[..., PreprocessResult]:
    """Preprocess sources into `tmp_path/corpus` (or another folder) with the tiny tokenizer."""

    def run(*sources: Path | str, output: Path | None = None, **given: Any) -> PreprocessResult:
        settings = PreprocessSettings(**{"tokenizer": str(tokenizer_folder), **given})
        result = preprocess([str(source) for source in sources], output or tmp_path / "corpus", settings=settings)
        assert result is not None
        return result

    return run


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Write texts, or raw lines given as bytes, as JSON lines."""

    def write(name: str, rows: list[str | bytes]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [row if isinstance(row, bytes) else json.dumps({"text": row}).encode() for row in rows]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write
