"""Settings of `toolkit preprocess` and `toolkit tokenizer train`."""

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from toolkit.core.settings import Settings

TxtDocuments = Literal["file", "paragraph", "line"]

_AtLeastOne = Annotated[int, Field(ge=1)]


def _separates(delimiter: str) -> str:
    if len(delimiter) != 1 or delimiter in '"\r\n ':
        raise ValueError("expected one character, such as ';' (a tab is $'\\t' in bash)")
    return delimiter


def _matches_names(glob: str) -> str:
    if not PurePath(glob).parts:
        raise ValueError(f"{glob!r} matches no name. Give a name, or a glob such as '*.jsonl'.")
    return glob


class ReadingSettings(Settings):
    """Settings for reading texts from files."""

    text_field: Annotated[str, Field(min_length=1)] = "text"
    """Key (JSON) or column (Parquet, CSV, TSV) that holds the text."""
    txt_documents: TxtDocuments = "file"
    """Document unit of a .txt file: the "file", a "paragraph" between blank lines, or a "line"."""
    delimiter: Annotated[str, AfterValidator(_separates)] = ","
    """Character between the columns of .csv files."""
    subset: Annotated[str, Field(min_length=1)] | None = None
    """Configuration of a data set on the hub."""
    exclude: Annotated[tuple[Annotated[str, AfterValidator(_matches_names)], ...], Field(strict=False)] | None = None
    """Leave out sources whose name, folder or path suffix matches this glob. May be repeated."""
    limit_documents: _AtLeastOne | None = None
    """Stop after this many documents."""


class PreprocessSettings(ReadingSettings):
    """Settings for building a corpus from texts."""

    tokenizer: Annotated[str, Field(min_length=1)]
    """A folder or file with a Hugging Face tokenizer.json, a tiktoken rank file, a SentencePiece .model, a spec, a hub
    id, or the name of a shipped spec."""
    workers: _AtLeastOne | None = None
    """Threads that read and encode; by default one per core. The result does not depend on it."""
    tasks: _AtLeastOne | None = None
    """Number of tasks that share the groups of sources (1 GiB): local processes, Slurm jobs or Ray actors."""
    executor: Literal["local", "slurm", "ray"] = "local"
    """Where tasks run. The result does not depend on it, nor on their number."""
    engine: Literal["auto", "reference"] = "auto"
    """auto: the fast batch backend where it is proven equal to the tokenizer's own; reference: the tokenizer's own."""
    limit_tokens: _AtLeastOne | None = None
    """Stop after the document that reaches this many tokens."""
    shard_tokens: _AtLeastOne = 2**28
    """A shard closes after the document that reaches this many tokens, or at the end of a group of sources (1 GiB)."""
    sequence_length: Annotated[int, Field(le=2**20)] | None = None
    """Also build the packing plans for rows of this many tokens; otherwise training builds them on first use."""
    special_text: Literal["parse", "literal"] | None = None
    """Strings of special tokens inside a text: parse them as tokens, as Megatron-LM does (the default for Hugging Face
    tokenizers), or take them as ordinary text (always for tiktoken and SentencePiece)."""
    eod: str | None = None
    """Token that ends a document; by default the tokenizer's eos token, else its sep token."""
    add_eod: bool = True
    """End every document with a token."""
    add_bos: bool = True
    """Keep what the tokenizer itself puts in front of a text."""
    mask_token: str = "auto"
    """auto: the tokenizer's own, else the first reserved slot, else a new id; or token:TEXT, or id:N."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Put this share of the documents, chosen by the hash of their text, into a separate corpus, DIR/holdout."""
    near_duplicates: Annotated[float, Field(ge=0.1, le=1)] | None = None
    """Drop all but the first of similar documents: minimum share of word 5-grams in common (0.8, say)."""
    without: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Drop documents that contain a text of these test files or folders: 13 consecutive words. FILE:COLUMN reads one
    column only. May be repeated."""
    max_bad_fraction: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Stop with an error if more than this share of all rows is unusable; checked after each file."""
    overwrite: bool = False
    """Replace the corpus in the folder, finished or not."""

    @property
    def is_limited(self) -> bool:
        """True if the corpus ends at a limit, which only a single task that reads everything before it can find."""
        return self.limit_documents is not None or self.limit_tokens is not None


class TokenizerTrainingSettings(ReadingSettings):
    """Settings for training a vocabulary on texts."""

    vocab_size: Annotated[int, Field(ge=259, le=1 << 20)]
    """Number of ids: 256 bytes, 3 special tokens, and the learnt ones."""
    overwrite: bool = False
    """Replace a tokenizer trained into this folder earlier."""
