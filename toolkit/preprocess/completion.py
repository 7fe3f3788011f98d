"""What completes a corpus whose shards are there: its tokenizer, then corpus.json; with that the corpus exists."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import toolkit
from tokenization import Tokenizer
from toolkit.data.file_hashes import hash_folder
from toolkit.data.manifest import CorpusManifest, SpecialIds, TokenizerEntry, write_manifest
from toolkit.data.shard_table import ShardEntry
from toolkit.preprocess.folder import TOKENIZER_FOLDER


def complete_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    shards: Sequence[ShardEntry],
    dtype: str,
    special_text_hits: int,
    skipped: Mapping[str, int],
) -> CorpusManifest:
    """Write `tokenizer/` and `corpus.json` into a folder; returns the manifest with its hash.

    Args:
        folder: of the corpus.
        tokenizer: the one that made the ids.
        shards: all of them, in order.
        dtype: numpy name of the type of the tokens.
        special_text_hits: how often a string of a special token stood in the text.
        skipped: rows left out, by reason.

    Raises:
        OSError: the tokenizer cannot be written.
        CorpusError: corpus.json cannot be written.
    """
    tokenizer.save(folder / TOKENIZER_FOLDER)
    manifest = CorpusManifest(
        documents=sum(entry.documents for entry in shards),
        tokens=sum(entry.tokens for entry in shards),
        dtype=dtype,
        toolkit_version=toolkit.__version__,
        tokenizer=TokenizerEntry(
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocabulary_size,
            special_ids=SpecialIds(**tokenizer.special_ids),
            all_special_ids=tokenizer.all_special_ids,
        ),
        tokenizer_files=hash_folder(folder / TOKENIZER_FOLDER),
        special_text_hits=special_text_hits,
        skipped=dict(sorted(skipped.items())),
        shards=tuple(shards),
    )
    return write_manifest(folder, manifest)
