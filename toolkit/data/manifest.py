"""The manifest of a corpus, `corpus.json`: what is in the folder, and the hash of everything that matters.

The file is canonical: one way to write it, checked byte for byte when it is read, so any change to it is noticed.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

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
    all_special_ids: Annotated[tuple[_Count, ...], Field(strict=False)]
    """Every special id, ascending."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One pair of .bin and .idx files. A plain class with slots: a large corpus has tens of thousands.

    Attributes:
        name: file name without its ending, relative to the corpus folder.
        documents: number of documents.
        tokens: number of tokens.
        sha256_bin: hash of the tokens file.
        sha256_idx: hash of the index file.
        source: where its text came from.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    documents: _Count
    tokens: _Count
    sha256_bin: _Sha256
    sha256_idx: _Sha256
    source: str


class CorpusManifest(Settings):
    """Everything `corpus.json` says; `manifest_sha256` is filled in when it is written."""

    documents: _Count
    """Number of documents in all shards."""
    tokens: _Count
    """Number of tokens in all shards."""
    dtype: Annotated[str, Field(pattern="^(uint16|int32)$")]
    """numpy name of the type of the tokens."""
    toolkit_version: str
    """Version that wrote the corpus."""
    tokenizer: TokenizerEntry
    """The tokenizer that made the ids."""
    special_text_hits: _Count
    """How often text contained the string of a special token."""
    skipped: dict[str, _Count]
    """Number of rows left out, by reason."""
    shards: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
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
    content = _render(manifest)
    digest = hashlib.sha256(content).hexdigest()
    path, temporary = folder / MANIFEST_NAME, folder / f".{MANIFEST_NAME}.partial"
    try:
        with temporary.open("wb") as file:
            file.write(content[: -len(_END)] + _hash_line(digest))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CorpusError(f"cannot write {path}: {error.strerror}.") from error
    return manifest.model_copy(update={"manifest_sha256": digest})


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
            f"no corpus at {folder}: it {what}. "
            f"Make one with `toolkit preprocess SOURCE --tokenizer TOK --output {folder}`."
        ) from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}.") from error
    without_hash = text[: -len(_hash_line("0" * 64))] + _END
    if not text.endswith(_hash_line(hashlib.sha256(without_hash).hexdigest())):
        raise CorpusError(f"{path} is damaged: its content does not have the hash that it names. {_REMEDY}")
    try:
        return CorpusManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorpusError(f"{path} does not describe a corpus: {where}: {first['msg']}. {_REMEDY}") from error


_REMEDY = "Copy the corpus again, or make it anew with `toolkit preprocess --overwrite`."


# How the file ends, with and without the hash: the hash is that of the file as it would be without it.
_END = b"\n}\n"


def _hash_line(digest: str) -> bytes:
    return b',\n "manifest_sha256": "' + digest.encode() + b'"' + _END


def _render(manifest: CorpusManifest) -> bytes:
    content = manifest.model_dump(mode="json", exclude={"manifest_sha256"})
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
