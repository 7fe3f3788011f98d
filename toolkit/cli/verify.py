"""`toolkit verify`: hashes of all files of a corpus, a run or a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.core.text import terminal_safe

EXAMPLES = (
    "toolkit verify data/corpus",
    "toolkit verify runs/mine",
    "toolkit verify runs/mine/checkpoints/step-00001000",
)


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus, of a run or of a checkpoint.")],
) -> None:
    """Hash every file of a corpus or of checkpoints and name damaged ones (exit code 2)."""
    from toolkit.inspection import verify

    for line in verify(folder):
        print(terminal_safe(line))
