"""Cache of converted tokenizers: the Hugging Face form of a rank file or SentencePiece model, made and checked once.

A cached form's key covers the file's bytes, any other inputs (the spec), the versions of the libraries and `_VERSION`.
Each form carries its own hash: a damaged one is converted again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tokenization.errors import TokenizationError, native_errors

if TYPE_CHECKING:
    import tokenizers

# Increase whenever a conversion's result, or the check of it, changes.
_VERSION = 2
_LIBRARIES = ("tokenizers", "tiktoken", "sentencepiece")


@dataclass(frozen=True)
class Form:
    """A tokenizer in the Hugging Face form, and its `tokenizer.json` if already known."""

    backend: "tokenizers.Tokenizer"
    content: bytes | None = None


def cached_form(
    folder: Path | None, description: Mapping[str, str], convert: Callable[[], "tokenizers.Tokenizer"]
) -> Form:
    """Return the form from the cache in `folder`; else the one that `convert` makes and checks, and cache it.

    None as `folder`: no cache. One that cannot be written is no error. The form depends only on `description`.
    """
    if folder is None:
        return Form(convert())
    described = {**description, "version": _VERSION, "libraries": [version(library) for library in _LIBRARIES]}
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    path = folder / f"tokenizer-{key[:32]}.json"
    if (form := _read(path, key)) is not None:
        return form
    backend = convert()
    content: bytes = backend.to_str(pretty=True).encode()
    with suppress(OSError):
        _write(path, key, content)
    return Form(backend, content)


def _read(path: Path, key: str) -> Form | None:
    from tokenizers import Tokenizer as Backend

    try:
        header, _, content = path.read_bytes().partition(b"\n")
        if header != _header(key, content):
            return None
        with native_errors(f"{path} cannot be read"):
            return Form(Backend.from_buffer(content), content)
    except (OSError, TokenizationError):
        return None


def _write(path: Path, key: str, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(_header(key, content) + b"\n" + content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _header(key: str, content: bytes) -> bytes:
    return f"{key} {hashlib.sha256(content).hexdigest()}".encode()
