"""From what a user names to a tokenizer."""

import re
from pathlib import Path

from tokenization.errors import TokenizationError, UnsupportedTokenizerError
from tokenization.names import SpecialNames, read_special_names
from tokenization.tokenizer import EncodingRules, Tokenizer

__all__ = ["load"]

_FILE = "tokenizer.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_OTHER_KINDS = {
    ".model": "A tiktoken rank file or SentencePiece model",
    ".tiktoken": "A tiktoken rank file",
    ".toml": "A tokenizer spec file",
}


def load(
    spec: str | Path,
    *,
    mask_token: str = "auto",
    eod: str | None = None,
    rules: EncodingRules | None = None,
) -> Tokenizer:
    """Load a tokenizer and decide its special tokens.

    Names of special tokens come from `tokenizer_config.json` and `special_tokens_map.json` beside `tokenizer.json`,
    never from guessing.

    Args:
        spec: a folder with a Hugging Face `tokenizer.json`, or such a file.
        mask_token: `auto` (the named one, else the first reserved slot, else one appended id), `token:TEXT`, `id:N`.
        eod: text of the token that ends a document; by default the eos token, else the sep token. It is named eos
            where the tokenizer names none.
        rules: how texts are encoded; by default as Megatron-LM does.

    Raises:
        TokenizationError: nothing is there, it cannot be read, or a token asked for does not exist.
        UnsupportedTokenizerError: a kind of tokenizer that is not read yet.
    """
    path = _find(spec)
    names = read_special_names(path.parent) if path.name == _FILE else SpecialNames()
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise TokenizationError(f"{path} is not a Hugging Face {_FILE}: it is not UTF-8 text.") from error
    except OSError as error:
        raise TokenizationError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # `tokenizers` raises bare Exception for whatever it cannot read.
        raise TokenizationError(f"{path} is not a Hugging Face {_FILE} that can be read: {error}.") from error
    return Tokenizer(backend, names, mask_token=mask_token, eod=eod, rules=rules or EncodingRules())


def _find(spec: str | Path) -> Path:
    path = Path(spec)
    if path.is_file():
        if path.suffix == ".json":
            return path
        kind = _OTHER_KINDS.get(path.suffix, "A tokenizer file of this kind")
        raise UnsupportedTokenizerError(
            f"{kind} ({path}) is not available yet. Give a Hugging Face {_FILE}, or a folder that holds one."
        )
    if path.is_dir():
        # The second place is that of a model that `toolkit convert --from-hf` wrote, and of every checkpoint.
        for place in (path / _FILE, path / "tokenizer" / _FILE):
            if place.is_file():
                return place
        held = sorted(entry.name for entry in path.iterdir())
        listed = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "") if held else "nothing"
        raise TokenizationError(f"The folder {path} has no {_FILE}; it holds: {listed}.")
    if _HUB_ID.fullmatch(str(spec)):
        raise UnsupportedTokenizerError(
            f"There is no file or folder {str(spec)!r} here, and a tokenizer by name or hub id is not available yet. "
            f"Give a folder with a Hugging Face {_FILE}."
        )
    raise TokenizationError(f"There is no tokenizer at {path}: no such file or folder.")
