"""Growth of time per token, memory and start-up of training: our engine against the Hugging Face Trainer, on a CPU.

    python benchmarks/training_sweeps.py [--dtype bf16|fp32] [--steps 5] [--only lengths widths memory]

- `lengths`: one sequence a row, from 128 to 4,096 tokens, 4,096 tokens a step; shape `nano`.
- `widths`: hidden sizes 128 to 512, 8 rows of 512; 4 layers, vocabulary 8,192.
- `memory`: `d256` with 8 and with 16 rows of 512. What the second 8 rows add, by their tokens, is the memory of a
  token; the rest of the first run's peak beyond its libraries, by parameters, is that of a parameter. The first run
  gives the start-up too: from the start of a process to the end of its first step.

Both sides run as their users run them: ours with its allocator's setting, the Trainer with the default. The first
losses are compared before anything is timed. A JSON row per sweep goes to benchmarks/results/training_sweeps.jsonl.
"""

import argparse
from typing import Any

from rows import keep, num_cores, parser_of
from training_contenders import SHAPES, compare

TOKENS, LENGTHS, WIDTHS = 4096, (128, 256, 512, 1024, 2048, 4096), (128, 256, 384, 512)
SHAPES |= {f"w{width}": SHAPES["nano"] | {"hidden_size": width, "intermediate_size": 4 * width} for width in WIDTHS}


def main() -> None:
    parser = parser_of("training_sweeps", __doc__)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each contender")
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    options = parser.parse_args()
    for name in options.only:
        same = {"dtype": options.dtype, "timed_steps": options.steps, "threads": num_cores()}
        keep(options, sweep=name, **same, **SWEEPS[name](options))


def lengths(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step of equally many tokens, by the length of a row."""
    points = {length: _both(options, "nano", TOKENS // length, length) for length in LENGTHS}
    return {"shape": "nano", "tokens": TOKENS, **_times(points)}


def widths(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, by the width of the model."""
    return {"tokens": TOKENS, **_times({width: _both(options, f"w{width}", 8, 512) for width in WIDTHS})}


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes per token and per parameter, and seconds until the first step is done."""
    from toolkit.model import model_settings, parameter_counts

    few, many = (_both(options, "d256", rows, 512) for rows in (8, 16))
    parameters = parameter_counts(model_settings(**SHAPES["d256"])).total
    found = {}
    for side in ("ours", "peer"):
        of_token = (many[side]["peak_mb"] - few[side]["peak_mb"]) * 1e6 / TOKENS
        of_parameter = (few[side]["peak_mb"] * 1e6 - of_token * TOKENS) / parameters
        found[side] = {
            "bytes_per_token": round(of_token),
            "bytes_per_parameter": round(of_parameter, 1),
            "peak_mb": {"8 rows": few[side]["peak_mb"], "16 rows": many[side]["peak_mb"]},
            "first_step_done_s": few[side]["first_step_done_s"],
        }
    return {"shape": "d256", "parameters": parameters, "sides": found}


SWEEPS = {"lengths": lengths, "widths": widths, "memory": memory}


def _both(options: argparse.Namespace, shape: str, num_rows: int, columns: int) -> dict[str, dict[str, Any]]:
    """Our side and the peer's on rows of one sequence each."""
    sizes = {"shape": shape, "num_rows": num_rows, "columns": columns}
    found = compare("blocks", dtype=options.dtype, steps=options.steps, **sizes)
    return {name.split()[0]: figures for name, figures in found.items()}


def _times(points: dict[int, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Microseconds of a token, wall and CPU, by point and side."""
    return {
        f"{clock[:-1]}us_per_token": {
            side: {str(point): round(found[side][clock] / TOKENS * 1e6, 2) for point, found in points.items()}
            for side in ("ours", "peer")
        }
        for clock in ("wall_s", "cpu_s")
    }


if __name__ == "__main__":
    main()
