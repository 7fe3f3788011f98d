"""`toolkit verify`: is every file of a corpus as it was written?"""

from pathlib import Path
from typing import Annotated

import typer


def command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus.")]) -> None:
    """Read every file of a corpus again and compare hashes; damaged and missing files are named, exit code 2."""
    from toolkit.core.errors import CorpusError
    from toolkit.data import verify_corpus

    found = verify_corpus(folder)
    for path in found.strangers:
        print(f"{path} does not belong to the corpus; nothing vouches for it, and it was not checked.")
    if found.damaged:
        raise CorpusError(str(found))
    print(found)
