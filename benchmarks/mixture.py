"""A step of a mixture against the mean of its two pure steps: one run, phases of CLM, of both and of MLM in turn.

    python benchmarks/mixture.py [--layers 6] [--width 256] [--rounds 6] [--dtype fp32]

The toolkit's own loop on random ids on a CPU: 8 rows of 512 a step in two micro-batches, MLM at 40 %, ZeRO 1, one
thread. Rounds of 5 steps of CLM, 5 of both at shares of 1/2, 5 of MLM, 5 of both; the first step of each is not
counted, since the batch of it is built beside the step before. A step's cost are its CPU seconds, in the middle of all
of a kind. Nothing is reported unless each loss of a mixture is the weighted sum of its objectives' means. One JSON row
goes to benchmarks/results/mixture.jsonl.
"""

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from made_up_run import ROWS, write_run
from rows import keep, parser_of

WINDOW, SKIPPED = 5, 20
MIX = 'mix = [{objective = "clm", share = 0.5}, {objective = "mlm", share = 0.5}]'
PHASES = ('objective = "clm"', MIX, 'objective = "mlm"', MIX)


def main() -> None:
    parser = parser_of("mixture", __doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        phases = ", ".join(f"{{{phase}, steps = {WINDOW}}}" for phase in PHASES)
        cycles = f'scheduler = {{kind = "alternate", cycles = {options.rounds + 1}}}'
        rates = "lr = {peak = 1e-4, warmup_steps = 5, decay_steps = 5}\nlog.every = 1"
        sizes = {"layers": options.layers, "width": options.width, "dtype": options.dtype}
        settings = f"schedule = [{phases}]\n{cycles}\n{rates}\n"
        run_file = write_run(Path(folder), settings, micro_rows=ROWS // 2, **sizes)
        seconds = measure(run_file, Path(folder) / "run")
    middle = {kind: median(found) for kind, found in seconds.items()}
    ratio = middle["clm+mlm"] / ((middle["clm"] + middle["mlm"]) / 2)
    keep(options, **sizes, rounds=options.rounds, cpu_s=middle, ratio=round(ratio, 4))


def measure(run_file: Path, run_folder: Path) -> dict[str, list[float]]:
    """CPU seconds of counted steps, by objective, of a run whose losses are what they should be."""
    from toolkit.engine.engine import Engine
    from toolkit.run import load_run
    from toolkit.training import pretrain

    begun, train_step = [], Engine.train_step

    def timed(*arguments: Any, **named: Any) -> Any:
        begun.append(time.process_time())
        return train_step(*arguments, **named)

    with patch.object(Engine, "train_step", timed):
        pretrain(load_run(str(run_file)), ds_config="zero1")
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    seconds: dict[str, list[float]] = {}
    for line, (start, stop) in zip(lines, pairwise(begun), strict=False):
        if "losses" in line:
            assert abs(line["loss"] - sum(line["losses"].values()) / 2) < 1e-5 * line["loss"], line
        if line["step"] > SKIPPED and line["step"] % WINDOW not in (0, 1):
            seconds.setdefault(line["objective"], []).append(stop - start)
    return seconds


if __name__ == "__main__":
    main()
