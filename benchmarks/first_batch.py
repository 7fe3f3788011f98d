"""From opening a corpus to the first batch: seconds, and memory beyond the imports, at 10^13 tokens.

    python benchmarks/first_batch.py [--shards 37253] [--processes 5]

The corpus is made up: 37,253 shards of 2^28 tokens (sparse files), a manifest as long as a real one, packing plans
present. A fresh process opens it, makes the rows and reads one batch of 12 rows of 2,048 for MLM; the files' metadata
is in the page cache. Twice: with the summary of all plans, as every opening after the first finds it, and without. One
JSON row goes to benchmarks/results/first_batch.jsonl.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import append_row, measured_on

RESULTS = Path(__file__).parent / "results" / "first_batch.jsonl"
ROWS, SEQUENCE_LENGTH, SHARD_TOKENS = 12, 2048, 1 << 28
PACKAGES = ("numpy", "pydantic", "encoder-pretraining-toolkit")


def first_batch(folder: str) -> dict[str, float]:
    """Seconds and MB of 10^6 bytes that this process takes."""
    import numpy as np

    from toolkit.core.draws import Draws
    from toolkit.data import Corpus, DataSettings, Order, RowStream, open_rows
    from toolkit.objectives import registry

    mlm = registry.get("mlm")
    settings = DataSettings(train=folder, sequence_length=SEQUENCE_LENGTH)
    before, wall, cpu = memory(), time.perf_counter(), time.process_time()
    corpus = Corpus(folder)
    rows = open_rows(corpus, settings, seed=0)
    stream = RowStream(rows, Order(rows.num_rows, seed=0, shuffle="global"))
    sample_indices_B = np.arange(ROWS)
    read = stream.at(sample_indices_B)
    objective = mlm(mlm.Settings(), corpus.vocabulary)
    objective.build(read.tokens_BS, read.segments_BS, Draws(0, sample_indices_B, num_columns=SEQUENCE_LENGTH))
    wall, cpu, after = time.perf_counter() - wall, time.process_time() - cpu, memory()
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "resident_mb": after["VmRSS"] - before["VmRSS"],
        "peak_mb": after["VmHWM"] - before["VmRSS"],
        "tokens": corpus.num_tokens,
        "rows": rows.num_rows,
    }


def memory() -> dict[str, float]:
    """Resident memory now and at its highest, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {name: int(kilobytes) * 1024 / 1e6 for name, kilobytes in found.items()}


def measure(folder: Path, *, processes: int, has_summary: bool) -> dict[str, float]:
    """Medians over fresh processes."""
    found = []
    for _ in range(processes):
        if not has_summary:
            for path in folder.glob("plans-*"):
                path.unlink()
        child = [sys.executable, __file__, "--child", str(folder)]
        found.append(json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout))
    return {key: round(statistics.median(one[key] for one in found), 4) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=37_253)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(first_batch(options.child)))
        return
    from sparse_corpus import write_sparse_corpus

    base = Path(tempfile.mkdtemp())
    try:
        folder = write_sparse_corpus(
            base / "corpus", num_shards=options.shards, shard_tokens=SHARD_TOKENS, sequence_length=SEQUENCE_LENGTH
        )
        found = {
            "without_summary": measure(folder, processes=options.processes, has_summary=False),
            "with_summary": measure(folder, processes=options.processes, has_summary=True),
        }
    finally:
        shutil.rmtree(base)
    row = {
        "benchmark": "first_batch",
        "shards": options.shards,
        "processes": options.processes,
        **found,
        **measured_on(PACKAGES),
    }
    print(json.dumps(row, indent=1), flush=True)
    append_row(options.output, row)


if __name__ == "__main__":
    main()
