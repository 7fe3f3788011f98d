"""`toolkit merge`: the mean of several checkpoints, as one."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit merge runs/trunk --steps 6000..10000 --output merged",
    "toolkit merge runs/trunk --steps 6000..10000:1000 --weights 1-sqrt --output merged",
    "toolkit merge runs/seed-0 runs/seed-1 runs/seed-2 --output merged",
    "toolkit merge runs/a/checkpoints/step-00001000 runs/b --weights 3,1 --output merged",
)


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="CHECKPOINT|RUN", help="Checkpoints, or runs: the newest of each, or several with --steps."
        ),
    ],
    *,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; must not exist or must be empty.")],
    steps: Annotated[
        str | None,
        typer.Option(metavar="A..B[:EVERY]", help="The kept checkpoints of each run from step A to B; all: every one."),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="uniform|linear|1-sqrt|W,W,...",
            help="The mean's weights, oldest first: equal, 1 2 3 ..., those equivalent to a 1-sqrt decay of "
            "the learning rate, or a number for each checkpoint; divided by their sum.",
        ),
    ] = "uniform",
) -> None:
    """Write one checkpoint with the weighted mean of the weights of several, summed in fp64; no optimizer state."""
    from toolkit.conversion.merging import merge
    from toolkit.core.text import ending, quoted

    merged = merge(sources, output, steps=steps, weights=weights)
    print(f"the mean of {len(merged)} checkpoints:")
    for parent in merged:
        print(f"  {parent.weight:.6f} x {parent.path} (step {parent.step:,})")
    print(ending(f"wrote {output}", f"toolkit convert --to-hf {quoted(output)} OUT"))
