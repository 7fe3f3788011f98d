"""`toolkit branch`."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit branch runs/trunk --step 40000 --config decay.toml --output runs/decayed-40000",
    "toolkit branch runs/trunk --step 40000 --config mlm.toml --output runs/mlm --set branch.lr=rewarm",
)


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Folder of the run to branch from; it is not changed.")
    ],
    *,
    step: Annotated[int, typer.Option(metavar="K", min=1, help="Step of a checkpoint kept in RUN_DIR.")],
    config: Annotated[
        Path, typer.Option(metavar="TAIL.toml", help="[[schedule]] from that step on, and other settings to change.")
    ],
    output: Annotated[Path, typer.Option(metavar="RUN_DIR2", help="Folder of the new run.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=value", help="Change a setting of the tail.")
    ] = None,
) -> None:
    """Start a new run from a step of another run, with a different tail: objective, decay, budget, data."""
    from toolkit.core.text import ending, quoted
    from toolkit.run.branching import make_branch

    file, notes = make_branch(run, step=step, tail=config, output=output, overrides=overrides or [])
    for note in notes:
        print(note)
    print(ending(f"wrote {file}", f"toolkit train {quoted(file)}"))
