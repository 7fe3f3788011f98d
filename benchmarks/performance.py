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
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rows import RESULTS, read_rows

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PAGE, FIGURES = DOCS / "performance.md", DOCS / "figures"
Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of the table: a ratio to a peer or, without one, a figure of ours, and what it should be."""

    what: str
    row: Row
    command: str
    value: float
    digits: int = 2
    peer: str = ""
    ours: str = ""
    """Beside a ratio, the figure of ours that it is made of."""
    wanted: float | None = None
    is_below: bool = False
    """True if the value should be less than what is wanted."""

    @property
    def is_met(self) -> bool:
        """True if the value is as wanted, or nothing is wanted."""
        return self.wanted is None or (self.value < self.wanted if self.is_below else self.value >= self.wanted)

    def __str__(self) -> str:
        """The line in Markdown."""
        shown = f"{self.value:.{self.digits}f}"
        ours, ratio = (self.ours, shown) if self.peer else (shown, "")
        wanted = "" if self.wanted is None else f"{'<' if self.is_below else '>='} {self.wanted:g}"
        missed = "" if self.is_met else " **missed**"
        return f"| {self.what} | {ours} | {self.peer} | {ratio} | {wanted}{missed} | `{self.command}` |"


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
    return read_rows(RESULTS / f"{name}.jsonl")


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
    for comparison in dict.fromkeys(row["comparison"] for row in rows_of("preprocess")):
        row = newest("preprocess", comparison=comparison)
        assert row is not None
        for measured, wanted in row["wanted"].items():
            ratio, what = row["ratios"][measured], f"preparing text, {measured}"
            yield Line(what, row, "preprocess", ratio, digits=1, peer=comparison, wanted=wanted)
    if row := newest("feeding"):
        for length, wanted in (("2048", 50), ("512", 40)):
            rate = row["rates"][length]["million_tokens_per_core_second"]
            what = f"rows of {length} read and masked, million tokens/s of a core"
            yield Line(what, row, "feeding", rate, digits=0, wanted=wanted)
        share = 100 * row["waiting"]["share"]
        yield Line("waiting for rows, % of a training step", row, "feeding", share, wanted=1, is_below=True)
    if row := newest("first_batch"):
        found, of = row["without_summary"], partial(Line, row=row, command="first_batch", is_below=True)
        yield of("10^13 tokens opened, seconds to the first batch", value=found["wall_s"], wanted=1)
        yield of("10^13 tokens opened, MB beyond the imports", value=found["resident_mb"], digits=0, wanted=50)
    yield from _training()
    yield from _memory()
    for name, key, what in (
        ("finetuning", "ratio", "fine-tuning of one cell, seconds"),
        ("grid", "ratios", "cells of a fine-tuning grid an hour"),
    ):
        if row := newest(name):
            ratio = row[key]["trainers, one at a time"] if isinstance(row[key], dict) else row[key]
            yield Line(what, row, name, ratio, peer="HF Trainer", wanted=row["wanted"])


def _training() -> Iterator[Line]:
    faster = faster_dtype()
    targets = {"documents": 5.0, "blocks": 2.0 if faster == "bf16" else 1.6}
    dtypes = (faster, *(each for each in _DTYPES if each != faster))
    shapes = (("d256", "", "training_step"), ("modernbert", "ModernBERT's ", "training_step --shape modernbert"))
    for (shape, family, command), allocator, rows, dtype in product(shapes, ("own", "both"), targets, dtypes):
        if row := newest("training_step", shape=shape, dtype=dtype, allocator_set_by=allocator):
            ours, peer = (row["contenders"][f"{side} {rows}"]["tokens_per_second"] for side in ("ours", "peer"))
            given = "" if allocator == "own" else ", our allocator's setting given to both"
            yield Line(
                f"{family}training step, {rows}, {dtype}{given}, tokens/s",
                row,
                command,
                row["ratios"][f"{rows} wall_s"],
                ours=f"{ours:,}",
                peer=f"HF Trainer {peer:,}",
                wanted=targets[rows] if (allocator, dtype) == ("own", faster) else None,
            )


def _memory() -> Iterator[Line]:
    if row := newest("training_sweeps", sweep="memory"):
        ours, peer = (row["sides"][side] for side in ("ours", "peer"))
        for what, key in (
            ("training, peak bytes per token", "bytes_per_token"),
            ("training, peak bytes per parameter", "bytes_per_parameter"),
            ("start-up, seconds until the first step is done", "first_step_done_s"),
        ):
            sides = {"ours": f"{ours[key]:,}", "peer": f"HF Trainer {peer[key]:,}"}
            yield Line(f"{what} ({row['dtype']})", row, "training_sweeps", peer[key] / ours[key], **sides)


def page() -> str:
    """The page, with what the kept results say between its marks."""
    table = list(lines())
    missed = [line.what for line in table if not line.is_met]
    body = "\n".join(map(str, table))
    kept = {line.command: line.row for line in table}
    measured = "\n".join(f"| `{name}` | {_where(row)} |" for name, row in kept.items())
    found = {
        "table": "| | ours | peer | ratio | target | benchmark |\n|---|---|---|---|---|---|\n" + body,
        "missed": f"Below its target: {'; '.join(missed)}."
        if missed
        else "Every line with a target is at or above it.",
        "measured": "| benchmark | machine | load average | versions |\n|---|---|---|---|\n" + measured,
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, part in found.items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition("<!-- end -->\n")
        text = f"{before}<!-- {name} -->\n{part}\n<!-- end -->\n{after}"
    return text


def _where(row: Row) -> str:
    machine = row["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['libc']}" if isinstance(machine, dict) else machine
    load = f" | {row['load_average']:.1f}" if "load_average" in row else " | "
    # The versions of contenders in environments of their own are in tables of their own.
    tables = [row["versions"]] if "ours" not in row["versions"] else row["versions"].values()
    versions = "; ".join(", ".join(f"{name} {version}" for name, version in table.items()) for table in tables)
    return f"{place}{load} | {versions}"


def pictures() -> Iterator[tuple[str, bytes]]:
    """Time per token by length and by width, where both were measured."""
    from toolkit.experiments.report.figures.drawing import draw
    from toolkit.experiments.report.figures.pictures import Panel, Picture, Point, Series

    panels = []
    for sweep, title in (("lengths", "tokens in a row (nano)"), ("widths", "width of the model (512 tokens)")):
        if row := newest("training_sweeps", sweep=sweep):
            series = []
            for color, (side, label) in enumerate((("ours", "ours"), ("peer", "HF Trainer"))):
                points = (Point(float(at), value) for at, value in row["wall_us_per_token"][side].items())
                series.append(Series(label, tuple(points), color))
            panels.append(Panel(title, tuple(series), "microseconds per token"))
    if panels:
        picture = Picture("performance", "Time per token", "", "", tuple(panels), is_log=True)
        yield "performance.svg", draw(picture, "svg")


if __name__ == "__main__":
    sys.exit(main())
