"""Text to tokenised files: `toolkit preprocess` against Megatron-LM and datatrove, whole commands on the same files.

    python benchmarks/preprocess.py --text FOLDER --tokenizer TOK --peer-python PYTHON
        [--comparisons NAME...] [--repeats 5] [--slow-repeats 3] [--output RESULTS.jsonl]

FOLDER holds text as .jsonl, .jsonl.gz, .json.gz, .parquet or .txt; it is rewritten as one file, and as two files of
each format (`preprocess_inputs`). TOK is anything the toolkit takes; all contenders read the Hugging Face folder that
is made of it, without what it puts in front of a text, which not every peer can write. PYTHON is the one of an
environment with `megatron-core`, `datatrove[processing,io]`, `gigatoken`, `transformers` and `torch`; the peers are not
installed beside the toolkit. Megatron-LM's tools are in its repository alone: their loops are driven on the package
(`preprocess_peers`).

Every contender gets the same cores, as many as it has workers. Nothing is timed before each pair of contenders has
written the same ids for every document, read back by readers of our own (`preprocess_outputs`); that first run is also
the one whose memory is sampled. Then all take turns, and the median counts. CPU seconds are those of the whole process
tree. What a command costs before it works is shown apart: the difference between a quarter of the text and all of it
has no start in it. One JSON row per comparison goes to benchmarks/results/preprocess.jsonl.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preprocess_contenders import COMPARISONS, Comparison, Places, contenders, prepare_tokenizer, versions
from preprocess_inputs import Amount, changed_copies, read_documents, thinned, write_amount
from preprocess_measure import Usage, adopt_orphans, run
from preprocess_outputs import check_equal
from rows import keep, parser_of

MEGABYTE = 1_000_000
Task = tuple[str, str]


def make_amounts(options: argparse.Namespace, names: set[str]) -> dict[str, Amount]:
    documents = thinned(read_documents(options.text), options.share)
    if not documents:
        raise SystemExit(f"{options.text} holds no text in .jsonl, .jsonl.gz, .json.gz, .parquet or .txt.")
    num_bytes = sum(len(text.encode()) for text in documents)
    num_copies = -(-int(options.big_megabytes * MEGABYTE) // num_bytes)
    amounts = {}
    if "quarter" in names:
        amounts["quarter"] = write_amount(thinned(documents, 0.25), options.work / "quarter")
    if "whole" in names:
        amounts["whole"] = write_amount(documents, options.work / "whole")
    if "big" in names:
        amounts["big"] = write_amount(changed_copies(documents, num_copies), options.work / "big", has_folders=False)
    return amounts


class Bench:
    """Contenders, what they read, and what their runs took."""

    def __init__(self, places: Places, amounts: dict[str, Amount]) -> None:
        self.places = places
        self.amounts = amounts
        self.contenders = contenders(places)
        self.versions = versions(places)
        self.load_average = os.getloadavg()[0]
        self.first: dict[Task, Usage] = {}
        self.timed: dict[Task, list[Usage]] = {}

    def run(self, task: Task, *, samples_memory: bool = False) -> Usage:
        """One command of a contender, into an empty folder, with nothing left to be written from before."""
        contender, output = self.contenders[task[0]], self.output(task)
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        source = getattr(self.amounts[task[1]], contender.reads)
        os.sync()
        usage = run(
            contender.command(source, output),
            log=output / "log",
            environment={"HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": str(self.places.workers)},
            samples_memory=samples_memory,
        )
        print(f"  {task[0]}, {task[1]}: {usage.wall_s:.1f} s, {usage.cpu_s:.1f} s of CPU", flush=True)
        return usage

    def output(self, task: Task) -> Path:
        """Folder of a task's next run."""
        return self.places.work / "output" / "-".join(task).replace(" ", "-")

    def check(self, comparison: Comparison) -> dict[str, Any]:
        """Run both sides on the largest amount, with memory sampled, and compare what they wrote."""
        amount = comparison.amounts[-1]
        for task in (sides := [(name, amount) for name in comparison.sides]):
            if task not in self.first:
                self.first[task] = self.run(task, samples_memory=True)
        ours, peer = (self.contenders[task[0]].read(self.output(task)) for task in sides)
        return {"amount": amount} | check_equal(ours, peer, pair=" and ".join(comparison.sides))

    def time(self, tasks: Sequence[Task], *, repeats: int, slow_repeats: int) -> None:
        """Every task once, then every task again, as often as it is to be timed."""
        for turn in range(repeats):
            for task in tasks:
                if turn < slow_repeats or not self.contenders[task[0]].is_slow:
                    self.timed.setdefault(task, []).append(self.run(task))
                    shutil.rmtree(self.output(task))

    def figures(self, name: str, comparison: Comparison) -> dict[str, Any]:
        """Figures of a contender: medians by amount, rates in MB of text a second, what starting it costs."""
        found: dict[str, Any] = {"how": self.contenders[name].how}
        for amount in comparison.amounts:
            usages = self.timed[name, amount]
            wall, cpu = (statistics.median(getattr(usage, clock) for usage in usages) for clock in ("wall_s", "cpu_s"))
            megabytes = self.amounts[amount].text_bytes / MEGABYTE
            found[amount] = {
                "wall_s": round(wall, 3),
                "cpu_s": round(cpu, 3),
                "runs": len(usages),
                "megabytes_per_second": round(megabytes / wall, 2),
                "megabytes_per_cpu_second": round(megabytes / cpu, 2),
            }
            first = self.first.get((name, amount))
            if first is not None:
                found[amount]["peak_megabytes"] = round(first.peak_bytes / MEGABYTE)
        if "quarter" in comparison.amounts:
            found["without_start"] = self._without_start(found)
        return found

    def _without_start(self, found: dict[str, Any]) -> dict[str, Any]:
        less, more = (self.amounts[amount].text_bytes / MEGABYTE for amount in ("quarter", "whole"))
        rates = {}
        for clock, unit in (("wall_s", "second"), ("cpu_s", "cpu_second")):
            seconds = found["whole"][clock] - found["quarter"][clock]
            rates[f"megabytes_per_{unit}"] = round((more - less) / seconds, 2)
            rates[f"start_{clock}"] = round(found["whole"][clock] - seconds * more / (more - less), 2)
        return rates


def ratios(comparison: Comparison, ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Ratios of speed: whole commands by amount, and without the start of both."""
    found = {}
    for clock, unit in (("wall", "second"), ("cpu", "cpu_second")):
        rate = f"megabytes_per_{unit}"
        for amount in comparison.amounts:
            found[f"{amount} command, {clock}"] = ours[amount][rate] / peer[amount][rate]
        if "without_start" in peer:
            found[f"without start, {clock}"] = ours["without_start"][rate] / peer["without_start"][rate]
    return {name: round(ratio, 2) for name, ratio in found.items()}


def result_row(bench: Bench, comparison: Comparison, checked: dict[str, Any]) -> dict[str, Any]:
    sides = {name: bench.figures(name, comparison) for name in comparison.sides}
    text = {
        amount: {"documents": bench.amounts[amount].documents, "text_bytes": bench.amounts[amount].text_bytes}
        for amount in comparison.amounts
    }
    return {
        "comparison": comparison.name,
        "ratios": ratios(comparison, sides[comparison.ours], sides[comparison.peer]),
        "wanted": comparison.wanted,
        "contenders": sides,
        "ids_compared": checked,
        "text": text,
        "vocabulary_size": bench.places.vocabulary_size,
        "workers": bench.places.workers,
        "load_average_before": bench.load_average,
        "versions": bench.versions,
    }


def parsed() -> argparse.Namespace:
    parser = parser_of("preprocess", __doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder with real text")
    parser.add_argument("--tokenizer", required=True, help="what `toolkit preprocess --tokenizer` takes")
    parser.add_argument("--peer-python", type=Path, required=True, help="Python of the peers' environment")
    parser.add_argument("--toolkit", default=str(Path(sys.executable).with_name("toolkit")), help="our command")
    parser.add_argument("--comparisons", nargs="+", choices=list(COMPARISONS), default=list(COMPARISONS))
    parser.add_argument("--workers", type=int, default=2, help="and cores of every contender")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slow-repeats", type=int, default=3, help="runs of the contenders that take minutes")
    parser.add_argument("--big-megabytes", type=float, default=500, help="least size of the big amount of text")
    parser.add_argument("--share", type=float, default=1.0, help="of the text to take, to try the benchmark out")
    parser.add_argument("--work", type=Path, help="existing folder for inputs and outputs (4 GB), made empty again")
    return parser.parse_args()


def compare_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Make the inputs, check every comparison, time all of them in turns."""
    chosen = [COMPARISONS[name] for name in options.comparisons]
    vocabulary_size, eod_text = prepare_tokenizer(options.tokenizer, options.work / "tokenizer")
    places = Places(
        toolkit=options.toolkit,
        peer_python=options.peer_python,
        tokenizer=options.work / "tokenizer",
        eod_text=eod_text,
        vocabulary_size=vocabulary_size,
        work=options.work,
        workers=options.workers,
    )
    bench = Bench(places, make_amounts(options, {amount for one in chosen for amount in one.amounts}))
    for name, amount in bench.amounts.items():
        print(f"{name}: {amount.documents:,} documents, {amount.text_bytes / MEGABYTE:.1f} MB of text")
    print("Ids and memory:")
    checked = {comparison.name: bench.check(comparison) for comparison in chosen}
    tasks = dict.fromkeys((side, amount) for one in chosen for amount in one.amounts for side in one.sides)
    print("Times:")
    bench.time(list(tasks), repeats=options.repeats, slow_repeats=options.slow_repeats)
    return [result_row(bench, comparison, checked[comparison.name]) for comparison in chosen]


def main() -> None:
    options = parsed()
    adopt_orphans()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.workers])
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        options.work = Path(folder)
        rows = compare_all(options)
    for row in rows:
        keep(options, **row)


if __name__ == "__main__":
    main()
