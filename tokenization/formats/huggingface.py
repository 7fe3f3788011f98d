"""Hugging Face tokenizers from files: `tokenizer.json`, or GPT-2's pair of `vocab.json` and `merges.txt`."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenization.errors import TokenizationError, UnsupportedTokenizerError, native_errors
from tokenization.formats.sentencepiece_model import check_charsmap
from tokenization.special_tokens import read_tokenizer_class

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"

_CHARSMAP = "precompiled_charsmap"

# Classes of transformers that split and merge like GPT-2 and add nothing around a text.
_AS_GPT2 = {"GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast"}


def read_content(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizationError(
            f"{path} cannot be read: {error.strerror}. Allow access to it, or give another tokenizer."
        ) from error


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizationError(
            f"{path} is not a Hugging Face {TOKENIZER_FILE}: it is not UTF-8 text. Download it again."
        ) from error


def backend_from_json(content: bytes, path: Path) -> "tokenizers.Tokenizer":
    """The backend of a `tokenizer.json`; error messages name `path`."""
    try:
        with native_errors(f"{path} is not a Hugging Face {TOKENIZER_FILE} that can be read"):
            from tokenizers import Tokenizer as Backend

            for charsmap in _charsmaps(json.loads(content)["normalizer"] if _CHARSMAP.encode() in content else None):
                check_charsmap(base64.b64decode(charsmap, validate=True))
            return Backend.from_buffer(content)
    except TokenizationError:
        _text(content, path)  # raises a clearer error if it is not text
        raise


def _charsmaps(content: Any) -> Iterator[Any]:
    """The compiled character maps of a normalizer: `tokenizers` panics on a damaged one."""
    if isinstance(content, dict):
        if _CHARSMAP in content:
            yield content[_CHARSMAP]
        content = list(content.values())
    if isinstance(content, list):
        for inner in content:
            yield from _charsmaps(inner)


def backend_from_pair(folder: Path) -> "tokenizers.Tokenizer":
    """Read a byte-level BPE in GPT-2's format, from `vocab.json` and `merges.txt` in a folder."""
    stated = read_tokenizer_class(folder)
    if stated is not None and stated not in _AS_GPT2:
        raise UnsupportedTokenizerError(
            f"{folder} has {VOCABULARY_FILE} and {MERGES_FILE} of a {stated}, which does not work as GPT-2's. "
            f"Give a folder with its {TOKENIZER_FILE}, as AutoTokenizer.from_pretrained(...).save_pretrained(...) has."
        )
    vocabulary = _vocabulary(folder / VOCABULARY_FILE)
    lines = _text(read_content(folder / MERGES_FILE), folder / MERGES_FILE).split("\n")
    merges = [line.rstrip("\r").split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    if any(len(merge) != 2 for merge in merges):
        raise TokenizationError(f"{folder / MERGES_FILE} is invalid: expected two tokens per line. Download it again.")
    with native_errors(f"{folder / MERGES_FILE} does not fit {VOCABULARY_FILE} beside it"):
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers

        backend = Backend(models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in merges]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    return backend


def _vocabulary(path: Path) -> dict[str, int]:
    try:
        content: Any = json.loads(_text(read_content(path), path))
    except (ValueError, RecursionError) as error:
        raise TokenizationError(f"{path} cannot be read as JSON: {error}. Download it again, or correct it.") from error
    if isinstance(content, dict) and all(type(value) is int and 0 <= value < 1 << 31 for value in content.values()):
        return content
    raise TokenizationError(f"{path} is invalid: expected a JSON object that maps tokens to ids. Download it again.")
