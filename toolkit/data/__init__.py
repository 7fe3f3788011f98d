"""From a corpus on disk to rows of tokens in a seeded order. numpy only: no torch, no tokenizer, no process group."""

from toolkit.data.blend import Blend
from toolkit.data.corpus import Corpus
from toolkit.data.digest import DIGEST_START, advance_digest, row_hashes
from toolkit.data.file_hashes import hash_folder
from toolkit.data.manifest import (
    MANIFEST_NAME,
    CorpusManifest,
    SpecialIds,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from toolkit.data.order import Order
from toolkit.data.settings import BlendEntry, DataSettings
from toolkit.data.shard_table import ShardEntry
from toolkit.data.shards import Shard, ShardFiles, ShardWriter, token_dtype
from toolkit.data.stream import RowStream
from toolkit.data.verification import Verification, verify_corpus
from toolkit.data.windows import Rows, TokenRows, open_rows

__all__ = [
    "DIGEST_START",
    "MANIFEST_NAME",
    "Blend",
    "BlendEntry",
    "Corpus",
    "CorpusManifest",
    "DataSettings",
    "Order",
    "RowStream",
    "Rows",
    "Shard",
    "ShardEntry",
    "ShardFiles",
    "ShardWriter",
    "SpecialIds",
    "TokenRows",
    "TokenizerEntry",
    "Verification",
    "advance_digest",
    "hash_folder",
    "open_rows",
    "read_manifest",
    "row_hashes",
    "token_dtype",
    "verify_corpus",
    "write_manifest",
]
