"""A run of 512 and of 10,240 ranks through the real code, one rank at a time, without network and GPUs.

    python benchmarks/rehearsal.py [--shards 373] [--label TEXT] [--cases 1,512,10240]

The corpus is made up: 373 shards of 2^28 tokens (10^11 tokens in sparse files; packing plans are there). A few ranks of
each case start, train two steps and save, each in a process of its own (`rehearsal_rank.py` says what of it is real);
then the run is resumed at another number of ranks. JSON rows go to benchmarks/results/rehearsal.jsonl.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rows import append_row, measured_on

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "rehearsal.jsonl"
PACKAGES = ("torch", "deepspeed", "numpy", "encoder-pretraining-toolkit")
ROWS, SEQUENCE_LENGTH, SHARD_TOKENS = 10_240, 2048, 1 << 28


@dataclass(frozen=True)
class Case:
    """A layout of so many ranks."""

    world_size: int
    zero: str = "zero1"
    tp: int = 1
    pp: int = 1

    def __str__(self) -> str:
        copies = self.world_size // self.tp // self.pp
        parallel = "".join(f", {name} {size}" for name, size in (("tp", self.tp), ("pp", self.pp)) if size > 1)
        return f"{self.world_size:,} ranks: dp {copies:,}{parallel}, {self.zero}"

    @property
    def watched(self) -> Sequence[int]:
        """The ranks that are rehearsed: the first, its neighbour on the same machine, the last."""
        return sorted({0, min(1, self.world_size - 1), self.world_size - 1})


CASES = [
    Case(1),
    Case(512),
    Case(512, "pipeline", 8, 4),
    Case(10_240),
    Case(10_240, "zero2"),
    Case(10_240, "zero3"),
    Case(10_240, "zero1", 8),
    Case(10_240, "pipeline", 8, 4),
]
RESUMED = {512: Case(10_240), 10_240: Case(512)}


def run_file(base: Path, folder: Path, case: Case) -> Path:
    """As many tensors as the preset `3b` has, each narrow; rows of 2,048."""
    file = base / "run.toml"
    file.write_text(
        f"""precision = "bf16"
[run]
dir = "{folder}"
[model]
vocab_size = 128320
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 28
num_attention_heads = 8
[data]
train = "{base / "corpus"}"
sequence_length = {SEQUENCE_LENGTH}
[[schedule]]
objective = "clm"
steps = 2
[[schedule]]
objective = "mlm"
steps = 1
[train]
global_batch_rows = {ROWS if case.world_size > 1 else 16}
[lr]
warmup_steps = 1
decay_steps = 1
[parallel]
tp = {case.tp}
pp = {case.pp}
"""
    )
    return file


def resolve(base: Path, folder: Path, case: Case) -> dict[str, float]:
    """Resolve the run as rank 0 of a launch, or `toolkit train`, does, and write what ranks read; seconds of each."""
    from toolkit.run.forecast import forecast, forecast_memory
    from toolkit.run.load import declare_run
    from toolkit.run.resolve import resolve_run

    seconds = {}
    started = time.perf_counter()
    declared = declare_run(str(run_file(base, folder, case)))
    seconds["declare_s"] = time.perf_counter() - started
    started = time.perf_counter()
    run = resolve_run(declared, ds_config=case.zero, num_ranks=case.world_size)
    seconds["resolve_s"] = time.perf_counter() - started
    started = time.perf_counter()
    forecast(run, data=run.data)
    forecast_memory(run, run.division)
    seconds["forecast_s"] = time.perf_counter() - started
    started = time.perf_counter()
    with run.folder.locked():
        run.write()
    seconds["write_s"] = time.perf_counter() - started
    return seconds


def rehearse(base: Path, folder: Path, case: Case, ranks: Sequence[int], *, until: int) -> Iterator[dict[str, Any]]:
    """The rows of some ranks of a case, rank 0 first: what it says and writes, the others then hear and find."""
    for rank in ranks:
        kept = base / "kept"
        if rank:
            # Each rank starts where rank 0 did.
            _swap(folder / "checkpoints", kept)
        else:
            shutil.rmtree(base / "before", ignore_errors=True)
            if (folder / "checkpoints").exists():
                shutil.copytree(folder / "checkpoints", base / "before", copy_function=os.link)
        arguments = [str(folder), str(rank), str(case.world_size), str(until)]
        done = subprocess.run(
            [sys.executable, str(HERE / "rehearsal_rank.py"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "DS_ACCELERATOR": "cpu"},
        )
        if done.returncode:
            raise SystemExit(f"{case}, rank {rank}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
        yield json.loads(done.stdout.splitlines()[-1])
        if rank:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            kept.rename(folder / "checkpoints")


def _swap(checkpoints: Path, kept: Path) -> None:
    before = checkpoints.parent.parent / "before"
    checkpoints.rename(kept)
    if before.exists():
        shutil.copytree(before, checkpoints, copy_function=os.link)


def checkpoint_of(folder: Path) -> dict[str, float]:
    """What the newest checkpoint looks like on the disk, and how long it takes to look at it."""
    from toolkit.checkpoint.read import open_unverified
    from toolkit.checkpoint.retention import is_complete
    from toolkit.run.folder import RunFolder

    _, newest = RunFolder(folder).steps()[0]
    found: dict[str, float] = {
        "files": sum(1 for path in newest.rglob("*") if path.is_file()),
        "manifest_bytes": (newest / "manifest.json").stat().st_size,
    }
    for name, look in (
        ("open_s", lambda: open_unverified(newest)),
        ("verify_s", lambda: open_unverified(newest).verify()),
        ("is_complete_s", lambda: is_complete(newest)),
    ):
        started = time.perf_counter()
        look()
        found[name] = time.perf_counter() - started
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=373)
    parser.add_argument("--label", default="", help="kept with each row, such as before or after a change")
    parser.add_argument("--cases", default="", help="numbers of the cases, from 0; default: all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    from sparse_corpus import write_sparse_corpus

    cases = [CASES[int(number)] for number in options.cases.split(",")] if options.cases else CASES
    base = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        corpus = write_sparse_corpus(
            base / "corpus", num_shards=options.shards, shard_tokens=SHARD_TOKENS, sequence_length=SEQUENCE_LENGTH
        )
        (corpus / "tokenizer").mkdir()
        (corpus / "tokenizer" / "tokenizer.json").write_text("{}")
        for case in cases:
            folder = base / "run"
            shutil.rmtree(folder, ignore_errors=True)
            row: dict[str, Any] = {"benchmark": "rehearsal", "label": options.label, "case": str(case), **asdict(case)}
            row["resolve"] = resolve(base, folder, case)
            row["ranks"] = list(rehearse(base, folder, case, case.watched, until=2))
            row["checkpoint"] = checkpoint_of(folder)
            other = RESUMED.get(case.world_size)
            if other is not None:
                resolve(base, folder, other)
                row["resumed_by"] = str(other)
                row["resumed"] = list(rehearse(base, folder, other, (0, other.world_size - 1), until=3))
            row |= measured_on(PACKAGES)
            print(json.dumps(row, indent=1), flush=True)
            append_row(options.output, row)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
