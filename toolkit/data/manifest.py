"""The manifest of a corpus, `corpus.json`: what is in the folder, and the hash of everything that matters.

The file is canonical: one way to write it, checked byte for byte when it is read, so any change to it is noticed.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from toolkit.core.errors import CorpusError
from toolkit.core.settings import Settings

__all__ = [
    "MANIFEST_NAME",
    "CorpusManifest",
    "ShardEntry",
    "SpecialIds",
    "TokenizerEntry",
    "read_manifest",
    "write_manifest",
]

MANIFEST_NAME = "corpus.json"

_Count = Annotated[int, Field(ge=0)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_HASH_KEY = "manifest_sha256"


class SpecialIds(Settings):
    """The ids of the named special tokens; None where the tokenizer has none."""

    bos: _Count | None
    eos: _Count | None
    pad: _Count | None
    mask: _Count | None


class TokenizerEntry(Settings):
    """The tokenizer that made the ids."""

    fingerprint: str
    """Hash over the vocabulary and the special ids, independent of the file format."""
    vocab_size: Annotated[int, Field(ge=1)]
    """Number of ids, the mask token included."""
    special_ids: SpecialIds
    """The named ones."""
    all_special_ids: tuple[_Count, ...]
    """Every special id, ascending."""


class ShardEntry(Settings):
    """One pair of .bin and .idx files."""

    name: Annotated[str, Field(min_length=1)]
    """File name without its ending, relative to the corpus folder."""
    documents: _Count
    """Number of documents."""
    tokens: _Count
    """Number of tokens."""
    sha256_bin: _Sha256
    """Hash of the tokens file."""
    sha256_idx: _Sha256
    """Hash of the index file."""
    source: str
    """Where its text came from."""


class CorpusManifest(Settings):
    """Everything `corpus.json` says; `manifest_sha256` is filled in when it is written."""

    documents: _Count
    """Number of documents in all shards."""
    tokens: _Count
    """Number of tokens in all shards."""
    dtype: Literal["uint16", "int32"]
    """numpy name of the type of the tokens."""
    toolkit_version: str
    """Version that wrote the corpus."""
    tokenizer: TokenizerEntry
    """The tokenizer that made the ids."""
    special_text_hits: _Count
    """How often text contained the string of a special token."""
    skipped: dict[str, _Count]
    """Number of rows left out, by reason."""
    shards: tuple[ShardEntry, ...]
    """The files, in order."""
    manifest_sha256: str = ""
    """Hash of this file without this key."""

    @model_validator(mode="after")
    def _sums_agree(self) -> Self:
        for what in ("documents", "tokens"):
            total, in_shards = getattr(self, what), sum(getattr(shard, what) for shard in self.shards)
            if total != in_shards:
                raise ValueError(f"{what} is {total:,}, but the shards hold {in_shards:,}")
        if len({shard.name for shard in self.shards}) != len(self.shards):
            raise ValueError("two shards have the same name")
        return self


def write_manifest(folder: Path, manifest: CorpusManifest) -> CorpusManifest:
    """Write `corpus.json` into `folder`, atomically; returns the manifest with its hash.

    Raises:
        CorpusError: the file cannot be written.
    """
    content = manifest.model_dump(mode="json", exclude={_HASH_KEY})
    content[_HASH_KEY] = hashlib.sha256(_canonical(content)).hexdigest()
    path, temporary = folder / MANIFEST_NAME, folder / f".{MANIFEST_NAME}.partial"
    try:
        with temporary.open("wb") as file:
            file.write(_canonical(content))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CorpusError(f"cannot write {path}: {error.strerror}.") from error
    return manifest.model_copy(update={_HASH_KEY: content[_HASH_KEY]})


def read_manifest(folder: Path) -> CorpusManifest:
    """Read and check `corpus.json` in `folder`.

    Raises:
        CorpusError: it is missing, damaged, or says something that cannot be.
    """
    path = folder / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "has no corpus.json" if folder.is_dir() else "is no folder"
        raise CorpusError(
            f"no corpus at {folder}: it {what}. Make one with `toolkit preprocess SOURCE --output {folder}`."
        ) from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}.") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path} is damaged: not JSON. {_REMEDY}") from error
    if not isinstance(content, dict):
        raise CorpusError(f"{path} is damaged: not a JSON object. {_REMEDY}")
    _check_hash(path, text, content)
    try:
        return CorpusManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorpusError(f"{path} does not describe a corpus: {where}: {first['msg']}. {_REMEDY}") from error


_REMEDY = "Copy the corpus again, or make it anew with `toolkit preprocess --overwrite`."


def _check_hash(path: Path, text: bytes, content: dict[str, Any]) -> None:
    without_hash = {key: value for key, value in content.items() if key != _HASH_KEY}
    try:
        found = hashlib.sha256(_canonical(without_hash)).hexdigest()
        is_intact = content.get(_HASH_KEY) == found and text == _canonical(content)
    except (ValueError, RecursionError):  # lone surrogates and the like: json reads what UTF-8 cannot write
        is_intact = False
    if not is_intact:
        raise CorpusError(f"{path} is damaged: its content does not have the hash it names. {_REMEDY}")


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
