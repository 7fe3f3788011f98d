"""A corpus of any size on almost no disk: tokens that are holes in files, one index and one packing plan for all."""

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

import toolkit
from toolkit.data import CorpusManifest, ShardEntry, SpecialIds, TokenizerEntry, write_manifest
from toolkit.data.corpus.shard_index import HEADER, MAGIC
from toolkit.data.rows.plan import PlanKey, write_plan

_MEAN_LENGTH = 1024


def write_sparse_corpus(folder: Path, *, num_shards: int, shard_tokens: int = 1 << 28, sequence_length: int) -> Path:
    """Write a corpus whose every token is 0, with its packing plans; returns the folder.

    Each .bin is a file of its own without a block on the disk; all .idx are one file with many names, and so are all
    plans. Documents have log-normal lengths, about 1,000 tokens on average.
    """
    folder.mkdir(parents=True)
    lengths = _lengths(shard_tokens)
    index = _index(lengths)
    key = PlanKey(hashlib.sha256(index).hexdigest(), sequence_length, 12)
    entries = []
    for number in range(num_shards):
        name = f"shard-{number:05d}"
        bin_path, idx_path, plan_path = (folder / end for end in (f"{name}.bin", f"{name}.idx", key.file_name(name)))
        with bin_path.open("wb") as file:
            file.truncate(4 * shard_tokens)
        if number == 0:
            idx_path.write_bytes(index)
            write_plan(plan_path, key, document_lengths=lengths)
            first_idx, first_plan = idx_path, plan_path
        else:
            os.link(first_idx, idx_path)
            os.link(first_plan, plan_path)
        # As long as a real one; a hash that is not read here, since the tokens are not read through.
        source = f"hub://HuggingFaceFW/fineweb-edu/data/CC-MAIN-2013-20/train-{number:05d}-of-{num_shards:05d}.parquet"
        entries.append(ShardEntry(name, lengths.size, shard_tokens, "0" * 64, key.sha256_idx, source))
    special_ids = SpecialIds(bos=None, eos=0, pad=None, mask=128_256)
    tokenizer = TokenizerEntry(
        fingerprint="0" * 64, vocab_size=128_257, special_ids=special_ids, all_special_ids=(0, 128_256)
    )
    write_manifest(
        folder,
        CorpusManifest(
            documents=lengths.size * num_shards,
            tokens=shard_tokens * num_shards,
            dtype="int32",
            toolkit_version=toolkit.__version__,
            tokenizer=tokenizer,
            tokenizer_files={},
            special_text_hits=0,
            skipped={},
            shards=tuple(entries),
        ),
    )
    return folder


def _lengths(num_tokens: int) -> npt.NDArray[np.int32]:
    """Document lengths that add up to `num_tokens`."""
    draws = np.random.default_rng(0).lognormal(np.log(_MEAN_LENGTH) - 0.5, 1.0, 2 * num_tokens // _MEAN_LENGTH)
    lengths = draws.astype(np.int32) + 1
    count = int(np.searchsorted(np.cumsum(lengths), num_tokens))
    return np.append(lengths[:count], num_tokens - int(lengths[:count].sum())).astype("<i4")


def _index(lengths: npt.NDArray[np.int32]) -> bytes:
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    header = HEADER.pack(MAGIC, 1, 4, lengths.size, lengths.size + 1)
    boundaries = np.arange(lengths.size + 1, dtype="<i8")
    return header + lengths.tobytes() + pointers.astype("<i8").tobytes() + boundaries.tobytes()
