"""A training step on a CPU: our engine against the Hugging Face Trainer, on the same rows and masks.

    python benchmarks/training_step.py [--shape d256|nano] [--dtypes fp32 bf16] [--threads N] [--compile]

Two inputs of 4,096 tokens a step, 40 % masked: `documents`, 8 rows of 512 with two documents each, which the Trainer
gets as 16 sequences padded to the longest of the batch; and `blocks`, 8 rows of 512 that are one sequence each, the
Trainer's best case. Each contender is a process of its own with the same initial weights; a step of one begins when
the step of another has ended. Nothing is timed before the losses of the first step agree (fp32: to 4
decimals).

Our side sets its allocator (`toolkit.core.allocator`), the Trainer's users have the default: `own`. The same setting
given to the peer too is the other comparison: `both`. One JSON row per comparison goes to
benchmarks/results/training_step.jsonl.
"""

from rows import keep, num_cores, parser_of
from training_contenders import SHAPES, compare


def main() -> None:
    parser = parser_of("training_step", __doc__)
    parser.add_argument("--shape", choices=SHAPES, default="d256")
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--allocators", nargs="+", choices=["own", "both"], default=["own", "both"])
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each contender")
    parser.add_argument("--warm", type=int, default=2, help="steps before those")
    parser.add_argument("--compile", action="store_true", help="compile our blocks")
    parser.add_argument(
        "--threads",
        type=int,
        default=num_cores(),
        help="of each contender; on a busy machine take 1 and trust CPU seconds: two threads that wait for one another "
        "there burn several times the work",
    )
    options = parser.parse_args()
    for dtype in options.dtypes:
        for allocator in options.allocators:
            found = compare(
                "documents",
                "blocks",
                dtype=dtype,
                shape=options.shape,
                steps=options.steps,
                warm=options.warm,
                allocator=allocator,
                is_compiled=options.compile,
                num_threads=options.threads,
            )
            ratios = {
                f"{rows} {clock}": round(found[f"peer {rows}"][clock] / found[f"ours {rows}"][clock], 3)
                for rows in ("documents", "blocks")
                for clock in ("wall_s", "cpu_s")
            }
            same = {"compiled": options.compile, "timed_steps": options.steps, "threads": options.threads}
            compared = {"shape": options.shape, "dtype": dtype, "allocator_set_by": allocator}
            keep(options, **compared, **same, ratios=ratios, contenders=found)


if __name__ == "__main__":
    main()
