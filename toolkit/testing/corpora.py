"""Small corpora of made-up ids, for tests of everything that reads one."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import toolkit
from toolkit.core.files import hash_folder
from toolkit.data import (
    CorpusManifest,
    ShardWriter,
    SpecialIds,
    TokenizerEntry,
    token_dtype,
    write_manifest,
)

Document = npt.NDArray[np.integer]


def random_documents(
    num_documents: int,
    *,
    vocabulary_size: int,
    max_length: int = 200,
    min_length: int = 1,
    first_id: int = 0,
    seed: int = 0,
) -> list[Document]:
    """Documents of uniform lengths min_length..max_length and uniform ids first_id..vocabulary_size-1."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(min_length, max_length + 1, num_documents)
    return [generator.integers(first_id, vocabulary_size, length) for length in lengths]


def write_token_corpus(
    folder: Path,
    documents: Sequence[Document],
    *,
    vocabulary_size: int,
    shards: int = 1,
    bos: int | None = None,
    eos: int | None = None,
    pad: int | None = None,
    mask: int | None = None,
) -> Path:
    """Write documents of raw ids as a corpus, the same number of documents (nearly) in each shard.

    `vocabulary_size` includes the mask. The tokenizer is made up: id i is the word `t<i>`, so that transformers can
    load it and its fingerprint differs if these arguments do. Return the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = token_dtype(vocabulary_size)
    named = {"bos": bos, "eos": eos, "pad": pad, "mask": mask}
    entries = []
    for number in range(shards):
        first, last = (len(documents) * edge // shards for edge in (number, number + 1))
        some = [np.asarray(document) for document in documents[first:last]]
        with ShardWriter(folder / f"shard-{number:05d}", dtype=dtype) as writer:
            writer.append(
                np.concatenate([np.empty(0, dtype), *some]).astype(dtype),
                np.array([document.size for document in some], np.int64),
            )
            entries.append(writer.close(source="made up"))
    _write_tokenizer(folder / "tokenizer", vocabulary_size, named)
    write_manifest(
        folder,
        CorpusManifest(
            documents=sum(entry.documents for entry in entries),
            tokens=sum(entry.tokens for entry in entries),
            dtype=dtype.name,
            toolkit_version=toolkit.__version__,
            tokenizer=TokenizerEntry(
                fingerprint=hashlib.sha256(f"{vocabulary_size} {named}".encode()).hexdigest(),
                vocab_size=vocabulary_size,
                special_ids=SpecialIds(**named),
                all_special_ids=tuple(sorted({token_id for token_id in named.values() if token_id is not None})),
            ),
            tokenizer_files=hash_folder(folder / "tokenizer"),
            special_text_hits=0,
            skipped={},
            shards=tuple(entries),
        ),
    )
    return folder


def _write_tokenizer(folder: Path, vocabulary_size: int, named: dict[str, int | None]) -> None:
    folder.mkdir(exist_ok=True)
    special = {f"{name}_token": f"t{token_id}" for name, token_id in named.items() if token_id is not None}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = {token_id: f"t{token_id}" for token_id in named.values() if token_id is not None}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token_id, "content": text, **flags} for token_id, text in sorted(added.items())],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{token_id}": token_id for token_id in range(vocabulary_size)},
            "unk_token": "t0",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
