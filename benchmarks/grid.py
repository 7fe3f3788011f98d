"""Cells per hour: `toolkit grid` against one Hugging Face Trainer process per cell, on the same files.

    python benchmarks/grid.py --model FOLDER --train FILE --test FILE
        [--steps 300] [--rates 5e-4 1e-3] [--seeds 0 1 2] [--batch-rows 32] [--output RESULTS.jsonl]

Files and peer are those of benchmarks/finetuning.py, whose check that both sides read the same ids comes first. The
peer runs its cells twice: one after another, each on all cores, and as many at once as there are cores, each on one
thread. Seconds are those of the whole commands, starts included. Scores have to agree at each rate: where the means
over seeds differ by more than both standard deviations together, nothing is written. One JSON row goes to
benchmarks/results/grid.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomli_w
from finetuning import check_same_ids, parser_of_cells, run_side
from rows import apart, keep, num_cores

Cell = tuple[float, int]
"""Learning rate and seed."""


def run_grid(options: argparse.Namespace, cells: list[Cell], folder: Path) -> dict[Cell, float]:
    task = {
        "name": "task",
        "kind": "sc",
        "train": str(options.train.resolve()),
        # A grid of several rates chooses one; the peer does not, so what is chosen is not looked at.
        "validation": str(options.test.resolve()),
        "test": str(options.test.resolve()),
        "batch_rows": options.batch_rows,
    }
    settings = {
        "dir": str(folder / "grid"),
        "seeds": options.seeds,
        "learning_rates": options.rates,
        "steps": options.steps,
        "threads": 1,
    }
    grid = {"grid": settings, "model": [{"name": "model", "path": str(options.model.resolve())}], "task": [task]}
    file = folder / "grid.toml"
    file.write_text(tomli_w.dumps(grid), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("toolkit")), "grid", str(file)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    lines = (folder / "grid" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines]
    found = {(result["learning_rate"], result["seed"]): result["test"]["accuracy"] for result in results}
    assert set(found) == set(cells), "the grid did not run the cells of the peer"
    return found


def run_peers(options: argparse.Namespace, cells: list[Cell], num_at_once: int) -> dict[Cell, float]:
    """Accuracy of each cell, whose Trainer has a process of its own; several at once have a thread each."""
    environment = {} if num_at_once == 1 else {"OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(num_at_once) as pool:
        found = pool.map(lambda cell: apart(run_side, "trainer", options, *cell, **environment), cells)
        return {cell: result["accuracy"] for cell, result in zip(cells, found, strict=True)}


def spread(scores: Mapping[Cell, float], rate: float) -> tuple[float, float]:
    """Mean and standard deviation over seeds, to 4 decimals."""
    values = [score for cell, score in scores.items() if cell[0] == rate]
    return round(statistics.fmean(values), 4), round(statistics.stdev(values), 4)


def main() -> None:
    parser = parser_of_cells("grid", __doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3])
    options = parser.parse_args()
    if len(options.seeds) < 2:
        parser.error("--seeds: two or more are needed, to say whether scores agree")
    check_same_ids(options, options.rates[0])
    cells = [(rate, seed) for rate in options.rates for seed in options.seeds]
    scores: dict[str, dict[Cell, float]] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "grid": lambda: run_grid(options, cells, Path(folder)),
            "trainers, one at a time": lambda: run_peers(options, cells, 1),
            f"trainers, {num_cores()} at a time": lambda: run_peers(options, cells, num_cores()),
        }
        for side, run in sides.items():
            started = time.perf_counter()
            scores[side] = run()
            seconds[side] = time.perf_counter() - started
            print(f"{side}: {len(cells) * 3600 / seconds[side]:.0f} cells per hour, {scores[side]}", flush=True)
    by_rate = {side: {str(rate): spread(found, rate) for rate in options.rates} for side, found in scores.items()}
    for side, found in by_rate.items():
        for rate, (mean, deviation) in found.items():
            own_mean, own_deviation = by_rate["grid"][rate]
            if abs(mean - own_mean) > deviation + own_deviation:
                raise SystemExit(f"scores differ at the rate {rate}: {side} {mean:.4f}, grid {own_mean:.4f}")
    keep(
        options,
        cells=len(cells),
        steps=options.steps,
        batch_rows=options.batch_rows,
        train=options.train.name,
        seconds={side: round(value, 1) for side, value in seconds.items()},
        cells_per_hour={side: round(len(cells) * 3600 / value, 1) for side, value in seconds.items()},
        ratios={side: round(value / seconds["grid"], 2) for side, value in seconds.items() if side != "grid"},
        wanted=3.0,
        accuracy=by_rate,
    )


if __name__ == "__main__":
    main()
