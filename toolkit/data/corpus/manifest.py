"""The manifest of a corpus, `corpus.json`: contents of the folder, and the hash of everything that matters.

The file has one canonical form, checked byte for byte when it is read, so any change to it is noticed.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PlainSerializer, ValidationError, WrapValidator, model_validator

from toolkit.core.errors import CorpusError
from toolkit.core.files import atomic_write
from toolkit.core.settings import Record, explain
from toolkit.core.text import home_hint, quoted
from toolkit.core.types import FileName
from toolkit.data.corpus.shard_table import Count, Sha256, ShardEntry, ShardTable, read_entries

CORPUS_MANIFEST = "corpus.json"
DROPPED_FILE = "dropped.jsonl"
"""Side file of a corpus: one line per document that was left out of it as a near-duplicate or a test text."""


class SpecialIds(Record):
    """The ids of the named special tokens; None where the tokenizer has none."""

    bos: Count | None
    eos: Count | None
    pad: Count | None
    mask: Count | None


class FrameEntry(Record):
    """The ids placed around every document."""

    front: Annotated[tuple[Count, ...], Field(strict=False)]
    """In front of its text."""
    back: Annotated[tuple[Count, ...], Field(strict=False)]
    """After its text."""

    def __str__(self) -> str:
        front, back = (f"id {', '.join(map(str, ids))}" if ids else "nothing" for ids in (self.front, self.back))
        return f"{front} before, {back} after"


class EncodingEntry(Record):
    """Record of how texts became ids."""

    parse_special_text: bool
    """The string of a special token inside a text became that token."""
    add_bos: bool
    """A text kept what the tokenizer's post-processor puts in front of it."""
    add_eod: bool
    """Documents end with the end-of-document token."""
    frame: FrameEntry | None = None
    """Tokens that it puts around every document; None if not recorded."""


class TokenizerEntry(Record):
    """The tokenizer that made the ids."""

    fingerprint: str
    """Hash over the vocabulary and the special ids, independent of the file format."""
    vocab_size: Annotated[int, Field(ge=1, le=2**31)]
    """Number of ids, the mask token included."""
    special_ids: SpecialIds
    """The named ones."""
    all_special_ids: Annotated[tuple[Count, ...], Field(strict=False)]
    """Every special id, ascending."""
    source: str | None = None
    """Repository and commit of a tokenizer from the hub, `organization/name@commit`."""
    encoding: EncodingEntry | None = None
    """How texts were encoded; None if not recorded."""

    @model_validator(mode="after")
    def _ids_are_in_the_vocabulary(self) -> Self:
        named = self.special_ids.model_dump().values()
        frame = None if self.encoding is None else self.encoding.frame
        framing = () if frame is None else (*frame.front, *frame.back)
        for token_id in (*self.all_special_ids, *named, *framing):
            if token_id is not None and token_id >= self.vocab_size:
                raise ValueError(f"the special id {token_id} is outside the vocabulary of {self.vocab_size:,} ids")
        return self


@dataclass
class SourceEntry:
    """Totals of one source, or of several.

    Attributes:
        documents: number of rows that became documents, of the corpus or of its holdout.
        num_bytes: size of the file; 0 if a limit ended reading inside it.
        text_bytes: bytes of the documents as UTF-8.
        skipped: number of other rows, by reason.
    """

    documents: Count = 0
    num_bytes: Count = 0
    text_bytes: Count = 0
    skipped: dict[str, Count] = field(default_factory=dict)


class TextEntry(Record):
    """The text of a corpus: what its tokens do not show."""

    bytes: Count
    """Its size as UTF-8."""
    unknown_tokens: Count
    """Tokens that stand for what the vocabulary cannot write."""
    sampled_characters: Count
    """Letters, digits and signs of the documents that were decoded again."""
    lost_characters: Count
    """How many of them are lost in the tokens."""
    often_lost: str
    """The most frequent of these."""

    def facts(self, num_tokens: int) -> dict[str, str]:
        """Size of the text and, if anything is lost, the losses, by label."""
        size = f"{self.bytes / 1e6:,.1f} MB, {self.bytes / max(1, num_tokens):.2f} bytes per token"
        losses = self.losses(num_tokens)
        return {"text": size, **({"lost text": losses} if losses else {})}

    def losses(self, num_tokens: int, *, most: float = 0.0) -> str:
        """The lost parts of the text, as a sentence without its period; empty if no share is above `most`."""
        unknown, lost = self.unknown_tokens / max(1, num_tokens), self.lost_characters / max(1, self.sampled_characters)
        of_tokens = f"{_percent(unknown)} of the tokens are the unknown token"
        of_text = f"{_percent(lost)} of the characters in a sample cannot be read from the tokens ({self.often_lost})"
        return " and ".join(what for what, share in ((of_tokens, unknown), (of_text, lost)) if share > most)


def _percent(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.3g} %"


class DroppedEntry(Record):
    """Documents that were left out as near-duplicates, or because they contain test texts."""

    sha256: Sha256
    """Hash of `dropped.jsonl`."""
    sources: dict[str, dict[str, Count]]
    """Their number, by source and reason."""


def _as_table(value: Any, check: Callable[[Any], Sequence[ShardEntry]]) -> ShardTable:
    """Return a table unchanged; check anything else entry by entry and convert it to one."""
    return value if isinstance(value, ShardTable) else ShardTable(check(value))


class CorpusManifest(Record):
    """Content of `corpus.json`; `manifest_sha256` is filled in when it is written."""

    documents: Count
    """Number of documents in all shards."""
    tokens: Count
    """Number of tokens in all shards."""
    dtype: Annotated[str, Field(pattern="^(uint16|int32)$")]
    """numpy name of the type of the tokens."""
    toolkit_version: str
    """Version that wrote the corpus."""
    tokenizer: TokenizerEntry
    """The tokenizer that made the ids."""
    tokenizer_files: dict[FileName, Sha256]
    """Hash of each file of the folder `tokenizer`, by its path in it."""
    special_text_hits: Count
    """Number of special-token strings found in text."""
    text: TextEntry | None = None
    """Its text; None in a corpus that does not say."""
    skipped: dict[str, Count]
    """Number of rows left out, by reason."""
    sources: dict[str, SourceEntry] = Field(default_factory=dict)
    """The account of each source; none in the holdout and in an adopted corpus."""
    dropped: DroppedEntry | None = None
    """Those of them that hold a text; None where all texts are kept."""
    command_sha256: Sha256 | None = None
    """Hash of the options and sources of the command that made it; None of a holdout, and of adopted pairs."""
    shards: Annotated[Sequence[ShardEntry], WrapValidator(_as_table), PlainSerializer(ShardTable.as_dicts)]
    """The files, in order."""
    manifest_sha256: str = ""
    """Hash of this file without this key."""

    @property
    def table(self) -> ShardTable:
        """The shards as columns."""
        assert isinstance(self.shards, ShardTable)
        return self.shards

    @model_validator(mode="after")
    def _sums_agree(self) -> Self:
        for what in ("documents", "tokens"):
            # Python integers, which do not overflow.
            total, in_shards = getattr(self, what), sum(getattr(self.table, what).tolist())
            if total != in_shards:
                raise ValueError(f"{what} is {total:,}, but the shards hold {in_shards:,}")
        if len(set(self.table.names)) != len(self.shards):
            raise ValueError("two shards have the same name")
        return self


def write_manifest(folder: Path, manifest: CorpusManifest) -> CorpusManifest:
    """Write `corpus.json` into `folder`, atomically; returns the manifest with its hash."""
    content = _render(manifest)
    digest = hashlib.sha256(content).hexdigest()
    path = folder / CORPUS_MANIFEST
    try:
        atomic_write(path, content[: -len(_END)] + _hash_line(digest))
    except OSError as error:
        raise CorpusError(
            f"{path} cannot be written: {error.strerror}. Free space, or choose another folder."
        ) from error
    return manifest.model_copy(update={"manifest_sha256": digest})


def read_manifest(folder: Path) -> CorpusManifest:
    """Read and check `corpus.json` in `folder`; raise `CorpusError` if it is missing, damaged, or inconsistent."""
    path, text = folder / CORPUS_MANIFEST, _load(folder)
    # A view: copying a large corpus's manifest would dominate the memory needed to open it.
    digest = hashlib.sha256(memoryview(text)[: -len(_hash_line("0" * 64))])
    digest.update(_END)
    if not text.endswith(_hash_line(digest.hexdigest())):
        raise CorpusError(f"{path} is damaged: its content does not match the SHA-256 that it records. {_REMEDY}")
    try:
        return _read_canonical(text) or CorpusManifest.model_validate_json(text)
    except ValidationError as error:
        found = explain(error, CorpusManifest).splitlines()[0]
        raise CorpusError(f"{path} does not describe a corpus: {found} {_REMEDY}") from error


def read_damaged_manifest(folder: Path) -> CorpusManifest | None:
    """Content of a manifest even if its hash is wrong; None if it is missing or invalid."""
    try:
        return CorpusManifest.model_validate_json(_load(folder))
    except (CorpusError, ValidationError):
        return None


def _load(folder: Path) -> bytes:
    path = folder / CORPUS_MANIFEST
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is not a directory" if folder.exists() else "does not exist"
        what = "has no corpus.json" if folder.is_dir() else what
        # An existing folder may be something else, such as a run.
        place = "DIR" if folder.exists() else quoted(folder)
        raise CorpusError(
            f"no corpus at {folder}: it {what}.{home_hint(folder)} "
            f"Make one with `toolkit preprocess SOURCE --tokenizer TOK --output {place}`."
        ) from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error


def _read_canonical(text: bytes) -> CorpusManifest | None:
    """The manifest, with its shards read in batches; None if they are not in the form that `write_manifest` writes."""
    start, stop = text.find(_SHARDS_START), text.find(_SHARDS_END)
    if not 0 <= start < stop:
        return None
    try:
        others = json.loads(text[: start + len(_SHARDS_START)] + text[stop:])
        if others["shards"]:
            return None
        shards = ShardTable(read_entries(text, start + len(_SHARDS_START), stop))
        return CorpusManifest.model_validate({**others, "shards": shards})
    except (ValueError, RecursionError):
        # Parsing it as a whole gives a message that names the location.
        return None


_REMEDY = "Copy the corpus again, or rebuild it with `toolkit preprocess --overwrite`."


# Ends of the file, with and without the hash: the hash is that of the file as it would be without it.
_END = b"\n}\n"
_SHARDS_START, _SHARDS_END = b'\n "shards": [', b"\n ]"


def _hash_line(digest: str) -> bytes:
    return b',\n "manifest_sha256": "' + digest.encode() + b'"' + _END


def _render(manifest: CorpusManifest) -> bytes:
    content = manifest.model_dump(mode="json", exclude={"manifest_sha256"})
    for optional in ("text", "sources", "dropped", "command_sha256"):
        if not content[optional]:
            del content[optional]
    for key in ("source", "encoding"):
        if content["tokenizer"][key] is None:
            del content["tokenizer"][key]
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
