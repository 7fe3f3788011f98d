"""The peers' programs, run by the Python that has their packages: nothing of the toolkit is imported here.

    python preprocess_peers.py datatrove INPUT_FOLDER OUTPUT_FOLDER TOKENIZER_FOLDER EOD_TEXT NUM_TASKS
    python preprocess_peers.py megatron-loop INPUT OUTPUT_PREFIX TOKENIZER_FOLDER NUM_WORKERS
    python preprocess_peers.py megatron-fast-loop INPUT OUTPUT_PREFIX TOKENIZER_FOLDER

`datatrove` is its own pipeline: reader, tokenizer, local executor. The two loops stand in for Megatron-LM's
tools/preprocess_data.py and tools/preprocess_data_fast.py where no checkout is given: the tools are in its repository
alone, what they are made of is in the package megatron-core. They do what the tools do, in our words,
but say nothing of how far they are.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINES_A_TASK = 32


def run_datatrove(source: str, output: str, tokenizer: str, eod_text: str, num_tasks: str) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader, ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    reader = ParquetReader if list(Path(source).glob("*.parquet")) else JsonlReader
    writer = DocumentTokenizer(
        f"{output}/tokens", f"{tokenizer}/tokenizer.json", eos_token=eod_text, shuffle_documents=False
    )
    LocalPipelineExecutor(pipeline=[reader(source), writer], tasks=int(num_tasks), logging_dir=f"{output}/logs").run()


def megatron_tokenizer(folder: str) -> Any:
    from megatron.core.tokenizers import MegatronTokenizer

    return MegatronTokenizer.from_pretrained(
        tokenizer_path=folder,
        metadata_path={"library": "huggingface"},
        use_fast=True,
        include_special_tokens=True,
    )


def index_builder(prefix: str, vocabulary_size: int) -> Any:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    return IndexedDatasetBuilder(f"{prefix}_text_document.bin", dtype=DType.optimal_dtype(vocabulary_size))


class LineEncoder:
    """Work of each worker of the pool; it makes its own tokenizer, kept on the class as the tool does."""

    tokenizer: Any = None

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def start(self) -> None:
        """Make the tokenizer, once in each worker."""
        LineEncoder.tokenizer = megatron_tokenizer(self.folder)

    def encode(self, line: str) -> tuple[list[int], list[int]]:
        """Ids of one line's document, and the lengths of its sentences (one)."""
        ids = LineEncoder.tokenizer.tokenize(json.loads(line)["text"])
        if ids:
            ids.append(LineEncoder.tokenizer.eod)
        return ids, [len(ids)] if ids else []


def run_megatron_loop(source: str, prefix: str, tokenizer: str, num_workers: str) -> None:
    encoder = LineEncoder(tokenizer)
    builder = index_builder(prefix, megatron_tokenizer(tokenizer).vocab_size)
    with open(source, encoding="utf-8") as lines, multiprocessing.Pool(int(num_workers), encoder.start) as pool:
        for ids, lengths in pool.imap(encoder.encode, lines, LINES_A_TASK):
            builder.add_document(ids, lengths)
        pool.close()
        pool.join()
    builder.finalize(f"{prefix}_text_document.idx")


def run_megatron_fast_loop(source: str, prefix: str, tokenizer: str) -> None:
    """As the tool does: megatron is imported here, and again in the one process that is spawned for the one key."""
    import megatron.core.datasets.indexed_dataset  # noqa: F401

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.starmap(encode_file_fast, [(source, prefix, tokenizer)])


def encode_file_fast(source: str, prefix: str, tokenizer: str) -> None:
    """The whole file through gigatoken, the end of document to each row, one write."""
    import awkward
    import gigatoken
    import numpy as np
    from transformers import AutoTokenizer

    source_tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    encoder = gigatoken.Tokenizer(source_tokenizer).as_hf()
    builder = index_builder(prefix, len(source_tokenizer))
    rows = encoder.tokenizer.encode_files(gigatoken.JsonlFileSource([source], field="text"), parallel=True)
    ends = awkward.singletons(awkward.Array(np.full(len(rows), encoder.eos_token_id, dtype=np.uint32)))
    rows = awkward.concatenate([rows, ends], axis=1)
    lengths = np.asarray(awkward.num(rows, axis=1))
    builder.data_file.write(np.asarray(awkward.flatten(rows), dtype=builder.dtype).tobytes())
    builder.sequence_lengths.extend(lengths.tolist())
    builder.document_indices.extend(range(1, len(rows) + 1))
    builder.finalize(f"{prefix}_text_document.idx")


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "datatrove": run_datatrove,
        "megatron-loop": run_megatron_loop,
        "megatron-fast-loop": run_megatron_fast_loop,
    }
    programs[sys.argv[1]](*sys.argv[2:])
