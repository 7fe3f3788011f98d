"""`toolkit verify`: hashes of all files of a corpus."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = ("toolkit verify data/corpus",)


def command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus.")]) -> None:
    """Read every file of a corpus and compare its hash; names damaged and missing files (exit code 2)."""
    from toolkit.core.errors import CorpusError
    from toolkit.data import verify_corpus

    found = verify_corpus(folder)
    for path in found.unexpected_files:
        print(f"{path} does not belong to the corpus; it was not checked.")
    if found.damaged:
        raise CorpusError(str(found))
    print(found)
