"""From opening a corpus to the first batch: seconds, and memory beyond the imports, at 10^13 tokens.

    python benchmarks/first_batch.py [--shards 37253] [--processes 5]

The corpus is made up: 37,253 shards of 2^28 tokens (sparse files), a manifest as long as a real one, packing plans
present. A fresh process opens it, makes the rows and reads one batch of 12 rows of 2,048 for MLM; the files' metadata
is in the page cache. Twice: with the summary of all plans, as every opening after the first finds it, and without. One
JSON row goes to benchmarks/results/first_batch.jsonl.
"""

import statistics
import tempfile
import time
from pathlib import Path

from rows import apart, keep, parser_of, resident_megabytes

ROWS, SEQUENCE_LENGTH, SHARD_TOKENS = 12, 2048, 1 << 28


def first_batch(folder: Path) -> dict[str, float]:
    """Seconds and MB of 10^6 bytes that this process takes."""
    import numpy as np

    from toolkit.core.draws import Draws
    from toolkit.data import Corpus, DataSettings, Order, RowStream, open_rows
    from toolkit.objectives import registry

    mlm = registry.get("mlm")
    settings = DataSettings(train=str(folder), sequence_length=SEQUENCE_LENGTH)
    before, wall, cpu = resident_megabytes(), time.perf_counter(), time.process_time()
    corpus = Corpus(folder)
    rows = open_rows(corpus, settings, seed=0)
    stream = RowStream(rows, Order(rows.num_rows, seed=0, shuffle="global"))
    sample_indices_B = np.arange(ROWS)
    read = stream.at(sample_indices_B)
    objective = mlm(mlm.Settings(), corpus.vocabulary)
    objective.build(read.tokens_BS, read.segments_BS, Draws(0, sample_indices_B, num_columns=SEQUENCE_LENGTH))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "resident_mb": resident_megabytes() - before,
        "peak_mb": resident_megabytes("VmHWM") - before,
        "tokens": corpus.num_tokens,
        "rows": rows.num_rows,
    }


def measure(folder: Path, *, processes: int, has_summary: bool) -> dict[str, float]:
    """Medians over fresh processes."""
    found = []
    for _ in range(processes):
        if not has_summary:
            for path in folder.glob("plans-*"):
                path.unlink()
        found.append(apart(first_batch, folder))
    return {key: round(statistics.median(one[key] for one in found), 4) for key in found[0]}


def main() -> None:
    parser = parser_of("first_batch", __doc__)
    parser.add_argument("--shards", type=int, default=37_253)
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    from sparse_corpus import write_sparse_corpus

    with tempfile.TemporaryDirectory() as base:
        folder = write_sparse_corpus(
            Path(base) / "corpus", num_shards=options.shards, shard_tokens=SHARD_TOKENS, sequence_length=SEQUENCE_LENGTH
        )
        found = {
            f"with{'' if has_summary else 'out'}_summary": measure(
                folder, processes=options.processes, has_summary=has_summary
            )
            for has_summary in (False, True)
        }
    keep(options, shards=options.shards, processes=options.processes, **found)


if __name__ == "__main__":
    main()
