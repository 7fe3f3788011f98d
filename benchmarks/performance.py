"""The CPU's figures in one command: measures what this machine can, and writes docs/performance.md of all results.

    python benchmarks/performance.py [--page-only] [--minutes 20]
        [--finetuning MODEL TRAIN TEST] [--preprocess TEXT TOKENIZER PEER_PYTHON]

Measured here, one after another: `feeding.py`, `training_step.py` (both dtypes, both allocators), `training_sweeps.py`
at the faster of the two dtypes, `first_batch.py`; and, where what they need is given, `finetuning.py` (an encoder, as
`toolkit quickstart` leaves one, and labelled files, as in toolkit/quickstart/entity) and `preprocess.py` (text, a
tokenizer, and an environment with its three peers). Other rows are taken as they were measured last; each line of the
table names its machine and command. What fails, or would begin after so many minutes, is left out, and said.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import rehearsal_table

HERE = Path(__file__).resolve().parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
PAGE, FIGURES = DOCS / "performance.md", DOCS / "figures"
Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    what: str
    ours: str
    peer: str
    ratio: str
    wanted: str
    is_met: bool
    row: Row
    command: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-only", action="store_true", help="measure nothing; write the page of what is there")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no measurement after so many")
    parser.add_argument("--finetuning", nargs=3, metavar=("MODEL", "TRAIN", "TEST"))
    parser.add_argument("--preprocess", nargs=3, metavar=("TEXT", "TOKENIZER", "PEER_PYTHON"))
    options = parser.parse_args()
    left_out = [] if options.page_only else measure(options)
    PAGE.write_text(page(), encoding="utf-8")
    for name, picture in pictures():
        (FIGURES / name).write_bytes(picture)
    print(f"{PAGE} is written.")
    if left_out:
        print(f"Left out: {', '.join(left_out)}.", file=sys.stderr)
    return 1 if left_out else 0


def measure(options: argparse.Namespace) -> list[str]:
    """Run the benchmarks; returns those that were left out, and why."""
    begun, left_out = time.monotonic(), []
    for name, arguments in benchmarks(options):
        minutes = (time.monotonic() - begun) / 60
        if minutes > options.minutes:
            left_out.append(f"{name} (the time was over)")
            continue
        given = [each or faster_dtype() for each in arguments]
        print(f"\n== {name} {' '.join(given)} ({minutes:.1f} minutes since the start)", flush=True)
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *given], check=False)
        if done.returncode:
            left_out.append(f"{name} (exit code {done.returncode})")
    return left_out


def benchmarks(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Benchmarks with their arguments; an empty one stands for the faster dtype, which is not known before."""
    yield "feeding", []
    yield "training_step", []
    yield "training_sweeps", ["--dtype", ""]
    yield "first_batch", ["--processes", "5"]
    if options.finetuning:
        model, train, test = options.finetuning
        yield "finetuning", ["--model", model, "--train", train, "--test", test]
    if options.preprocess:
        text, tokenizer, peer_python = options.preprocess
        yield "preprocess", ["--text", text, "--tokenizer", tokenizer, "--peer-python", peer_python]


def rows_of(name: str) -> list[Row]:
    """Kept rows of a benchmark, oldest first."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def newest(name: str, **values: Any) -> Row | None:
    """The last row of a benchmark that has these values."""
    fitting = [row for row in rows_of(name) if all(row.get(key) == value for key, value in values.items())]
    return fitting[-1] if fitting else None


def faster_dtype() -> str:
    """Dtype in which our training step on blocks was faster, where it was measured last."""
    found = {dtype: newest("training_step", shape="d256", dtype=dtype, allocator_set_by="own") for dtype in _DTYPES}
    seconds = {dtype: row["contenders"]["ours blocks"]["wall_s"] for dtype, row in found.items() if row}
    return min(seconds, key=seconds.__getitem__) if seconds else "bf16"


_DTYPES = ("bf16", "fp32")


def lines() -> Iterator[Line]:
    yield from _preparing()
    yield from _feeding()
    yield from _training()
    yield from _memory()
    for name, key, what in (
        ("finetuning", "ratio", "fine-tuning of one cell, seconds"),
        ("grid", "ratios", "cells of a fine-tuning grid an hour"),
    ):
        if row := newest(name):
            ratio = row[key]["trainers, one at a time"] if isinstance(row[key], dict) else row[key]
            yield Line(
                what, "", "HF Trainer", f"{ratio:.2f}", f">= {row['wanted']:g}", ratio >= row["wanted"], row, name
            )


def _preparing() -> Iterator[Line]:
    for comparison in dict.fromkeys(row["comparison"] for row in rows_of("preprocess")):
        row = newest("preprocess", comparison=comparison)
        assert row is not None
        for measured, wanted in row["wanted"].items():
            ratio = row["ratios"][measured]
            what = f"preparing text, {measured}"
            yield Line(what, "", comparison, f"{ratio:.1f}", f">= {wanted:g}", ratio >= wanted, row, "preprocess")


def _feeding() -> Iterator[Line]:
    if row := newest("feeding"):
        for length, wanted in (("2048", 50), ("512", 40)):
            rate = row["rates"][length]["million_tokens_per_core_second"]
            what = f"rows of {length} read and masked, million tokens/s of a core"
            yield Line(what, f"{rate:.0f}", "", "", f">= {wanted}", rate >= wanted, row, "feeding")
        share = row["waiting"]["share"]
        what = "waiting for rows, share of a training step"
        yield Line(what, f"{share:.2%}", "", "", "< 1 %", share < 0.01, row, "feeding")
    if row := newest("first_batch"):
        found = row["without_summary"]
        what = "10^13 tokens opened, seconds to the first batch"
        yield Line(what, f"{found['wall_s']:.2f}", "", "", "< 1", found["wall_s"] < 1, row, "first_batch")
        what = "10^13 tokens opened, MB beyond the imports"
        yield Line(what, f"{found['resident_mb']:.0f}", "", "", "< 50", found["resident_mb"] < 50, row, "first_batch")


def _training() -> Iterator[Line]:
    faster = faster_dtype()
    wanted = {"documents": 5.0, "blocks": 2.0 if faster == "bf16" else 1.6}
    dtypes = (faster, *(each for each in _DTYPES if each != faster))
    shapes = (("d256", "", "training_step"), ("modernbert", "ModernBERT's ", "training_step --shape modernbert"))
    for (shape, family, command), allocator, rows, dtype in product(shapes, ("own", "both"), wanted, dtypes):
        row = newest("training_step", shape=shape, dtype=dtype, allocator_set_by=allocator)
        if row is None:
            continue
        ours, peer = (row["contenders"][f"{side} {rows}"]["tokens_per_second"] for side in ("ours", "peer"))
        ratio = row["ratios"][f"{rows} wall_s"]
        is_target = allocator == "own" and dtype == faster
        given = "" if allocator == "own" else ", our allocator's setting given to both"
        yield Line(
            f"{family}training step, {rows}, {dtype}{given}, tokens/s",
            f"{ours:,}",
            f"HF Trainer {peer:,}",
            f"{ratio:.2f}",
            f">= {wanted[rows]:g}" if is_target else "",
            not is_target or ratio >= wanted[rows],
            row,
            command,
        )


def _memory() -> Iterator[Line]:
    row = newest("training_sweeps", sweep="memory")
    if row is None:
        return
    ours, peer = (row["sides"][side] for side in ("ours", "peer"))
    for what, key in (
        ("training, peak bytes per token", "bytes_per_token"),
        ("training, peak bytes per parameter", "bytes_per_parameter"),
        ("start-up, seconds until the first step is done", "first_step_done_s"),
    ):
        ratio = peer[key] / ours[key]
        what = f"{what} ({row['dtype']})"
        yield Line(
            what, f"{ours[key]:,}", f"HF Trainer {peer[key]:,}", f"{ratio:.2f}", "", True, row, "training_sweeps"
        )


def page() -> str:
    table = list(lines())
    missed = [line.what for line in table if not line.is_met]
    body = "\n".join(
        f"| {line.what} | {line.ours} | {line.peer} | {line.ratio} | "
        f"{line.wanted}{' **missed**' * (not line.is_met)} | `{line.command}` |"
        for line in table
    )
    kept = {line.command: line.row for line in table}
    measured = "\n".join(f"| `{name}` | {_where(row)} |" for name, row in kept.items())
    many = rows_of("rehearsal")
    return _PAGE.format(
        table=body,
        many=rehearsal_table.table(many),
        many_where=_where(many[-1]).replace(" | ", ", load average ", 1).replace(" | ", ", "),
        missed=f"Below its target: {'; '.join(missed)}." if missed else "Every line with a target is at or above it.",
        measured=measured,
    )


def _where(row: Row) -> str:
    machine = row["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['libc']}" if isinstance(machine, dict) else machine
    load = f" | {row['load_average']:.1f}" if "load_average" in row else " | "
    # The versions of contenders in environments of their own are in tables of their own.
    tables = [row["versions"]] if "ours" not in row["versions"] else row["versions"].values()
    versions = "; ".join(", ".join(f"{name} {version}" for name, version in table.items()) for table in tables)
    return f"{place}{load} | {versions}"


_PAGE = """# Performance on a CPU

What one machine showed, each contender in the same run on the same input, compared for equal results before anything
was timed. Ratios above 1 are in our favour. Absolute times move by 10 to 30 % on a machine that others use too; ratios
move less. No GPU has been measured yet.

| | ours | peer | ratio | target | benchmark |
|---|---|---|---|---|---|
{table}

{missed}

What stands in the way, by profiles:

- Preparing a small corpus is mostly start. A profile of 122 MB with a vocabulary of 128,256 (6.7 s, on a slow day):
  imports 1.1 s, reading the vocabulary 1.0 s, opening the fast backend and comparing it with the reference on 2 MB of
  the text, which is what makes it safe, 1.5 s, the text 2.0 s, the rest hashes and the tokenizer's files. On larger
  corpora the line "without start" is what counts.
- Fine-tuning and training share their step; beside it there is reading, tokenising and scoring, which cost both sides
  the same. The difference to the target is smaller than that between two runs.
- On blocks in bf16, with our allocator's setting given to both, an earlier row reads 0.94: in it our rate is two thirds
  of that of the row before, which runs the same thing; it was taken beside other work. The last one reads 1.37.
- Memory of a parameter has no target; ours is the higher one. Beside states (bf16 and fp32 weights, moments, fp32 sums
  of gradients: 18 bytes) it counts what does not grow with the tokens: two chunks of fp32 logits (10 bytes at this
  size), buffers of the engine, and what the allocator keeps.
- Rows are read with our allocator's setting, as in a run on a CPU. Without it they read 27 to 54 million tokens/s where
  they read 40 to 84 with it, from one pass to the next, since the kernel takes pages back between batches.
- The first batch is that of the first start on a corpus whose packing plans are there: it reads the header of each of
  37,253. That start leaves a summary, with which later ones take 0.6 to 0.8 s.
- `training_step` was taken when the machine trained at 0.5 to 0.7 of the rates in earlier rows, both sides.
- ModernBERT's step on documents in bf16 was measured four times within two hours, the last time with windows as they
  are now: 4.63, 6.17, 5.48 and 6.30 times the Trainer's rate (4.35, 5.07, 4.75 and 5.33 by CPU time). A step took us
  1.38, 1.09, 1.05 and 1.04 s, the Trainer 6.4, 6.7, 5.8 and 6.6, and 4.7 on another occasion.

The dtype that is faster for us on that machine counts; both are shown. The peer is run as its users run it; where our
allocator's setting (`toolkit.core.allocator`) is given to it too, the line says so.

![Time per token by length and by width](figures/performance.svg)

| benchmark | machine | load average | versions |
|---|---|---|---|
{measured}

## Many ranks

512 and 10,240 ranks through the real code, a few ranks of each, each alone in a process; a cell has the figure before
and after what the rehearsal found was mended. **Not real**: nothing is sent (torch's fake process group, on which
each rank hears itself from all others), there are no GPUs, and forward and backward passes are left out. So the table
says what a rank computes, holds and asks of the file system, and nothing about waiting: one exchange over a ring of
10,240 ranks has as many hops as ranks, whatever it sends. The model has the 255 tensors of `3b`, each narrow; the
corpus 10^11 tokens in 373 shards, all of them holes; steps have 10,240 rows of 2,048. `python
benchmarks/rehearsal.py`, {many_where}.

{many}

What it found, and what was done:

- **A checkpoint was three files for each rank**, nearly all of them empty, in one folder and in a manifest of 4.5 MB,
  which each rank then read. Ranks without a parameter write nothing.
- **Every rank read every parameter** of a checkpoint from shared storage, and all ranks agreed on each: 42 seconds of
  unpickling at 10,240 ranks, between 255 exchanges. The ranks of one copy read and send to those of the others, over
  the network of the run, and all agree once.
- **Leaving a block together gathered an object from each rank**: 0.25 seconds of CPU, 22 times in a start. Now a
  number is summed, and objects follow only where there is an error. What rank 0 alone needs goes to rank 0 alone.
- **Each rank listed the members of every other rank's groups**, and made a group for each rank that is alone.
- **Every rank looked at the size of every shard and plan**; now one of each machine does, and a shard that differs is
  still found when it is opened.
- **Rows of a step were compared rank by rank in Python.**
- **Gloo connected each pair of ranks**, in each group: two groups of 512 ranks are 1,022 sockets, where 1,024 open
  files are a usual limit. With `TORCH_GLOO_LAZY_INIT` a rank has 8 sockets in a group, of 16 as of 64 ranks (these
  were real, as threads of one process).
- **Of more than 4,096 ranks, none watched another**: rank 0 let nobody in until all had called, and the system keeps
  4,096 calls waiting. At 4,600 ranks on the loopback they gave up after 41 seconds; now 10,240 are in within 4
  seconds (`python benchmarks/rehearsal_peers.py`, real sockets).

1, 512 and 10,240 ranks, without and with tp 8 and pp 4, are dealt the same rows in the same order: one digest
(`python benchmarks/rehearsal_order.py`, which fails otherwise).

What stays: Python's own start, 17,600 looks of each rank at its packages ([a
container](many-nodes.md#python-on-every-machine)); in a step, the hashes of all rows, which each rank gets from each
other (0.4 MB at 10,240 ranks, 3 MB with tp 8 and pp 4, whose ranks of one copy all send theirs); and DeepSpeed's
engine.

`make bench` measures `feeding`, `training_step`, `training_sweeps` and `first_batch` in about 20 minutes and writes
this page. `finetuning` needs an encoder and labelled files, `preprocess` text and an environment with its peers, with
which they are run too: `make bench BENCH_ARGS="--finetuning MODEL TRAIN TEST --preprocess TEXT TOKENIZER PYTHON"`.
`grid` is run by itself. Results are kept as JSON lines in `benchmarks/results`.
"""


def pictures() -> Iterator[tuple[str, bytes]]:
    """Time per token by length and by width, where both were measured."""
    from toolkit.report.figures.drawing import draw
    from toolkit.report.figures.pictures import Panel, Picture, Point, Series

    panels = []
    for sweep, title in (("lengths", "tokens in a row (nano)"), ("widths", "width of the model (512 tokens)")):
        if row := newest("training_sweeps", sweep=sweep):
            series = tuple(
                Series(
                    label,
                    tuple(Point(float(at), value) for at, value in row["wall_us_per_token"][side].items()),
                    color,
                )
                for color, (side, label) in enumerate((("ours", "ours"), ("peer", "HF Trainer")))
            )
            panels.append(Panel(title, series, "microseconds per token"))
    if panels:
        picture = Picture("performance", "Time per token", "", "", tuple(panels), is_log=True)
        yield "performance.svg", draw(picture, "svg")


if __name__ == "__main__":
    sys.exit(main())
