"""Rows of tokens in a seeded order from a corpus on disk. numpy only: no torch, no tokenizer, no process group."""

from toolkit.data.corpus.corpus import Corpus, Sizes
from toolkit.data.corpus.manifest import (
    CORPUS_MANIFEST,
    DROPPED_FILE,
    CorpusManifest,
    DroppedEntry,
    EncodingEntry,
    SourceEntry,
    SpecialIds,
    TextEntry,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from toolkit.data.corpus.shard_table import ShardEntry
from toolkit.data.corpus.shards import Shard, ShardWriter, token_dtype
from toolkit.data.order import DIGEST_START, Blend, Order, RowStream, advance_digest, row_hashes
from toolkit.data.rows.windows import Rows, TokenRows, open_rows, tokens_left_out
from toolkit.data.settings import DataSettings
from toolkit.data.verification import verify_corpus

__all__ = [
    "CORPUS_MANIFEST",
    "DIGEST_START",
    "DROPPED_FILE",
    "Blend",
    "Corpus",
    "CorpusManifest",
    "DataSettings",
    "DroppedEntry",
    "EncodingEntry",
    "Order",
    "RowStream",
    "Rows",
    "Shard",
    "ShardEntry",
    "ShardWriter",
    "Sizes",
    "SourceEntry",
    "SpecialIds",
    "TextEntry",
    "TokenRows",
    "TokenizerEntry",
    "advance_digest",
    "open_rows",
    "read_manifest",
    "row_hashes",
    "token_dtype",
    "tokens_left_out",
    "verify_corpus",
    "write_manifest",
]
