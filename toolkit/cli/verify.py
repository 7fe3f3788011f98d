"""`toolkit verify`: hashes of all files of a corpus, a run or a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.core.errors import UserError
from toolkit.core.text import terminal_safe

EXAMPLES = (
    "toolkit verify data/corpus",
    "toolkit verify runs/mine",
    "toolkit verify runs/mine/checkpoints/step-00001000",
)


def command(
    place: Annotated[str, typer.Argument(metavar="DIR", help="Folder of a corpus, of a run or of a checkpoint.")],
) -> None:
    """Hash every file of a corpus or of checkpoints and name damaged ones (exit code 2)."""
    from toolkit.inspection import verify
    from toolkit.storage import is_url

    if is_url(place):
        raise UserError(f"{place} is a URL, and files are hashed on this machine. Download it, and give the folder.")
    for line in verify(Path(place)):
        print(terminal_safe(line))
