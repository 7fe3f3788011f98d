"""`toolkit tokenizer train`: text to a vocabulary."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import option_of, settings_from
from toolkit.preprocess.settings import TokenizerTrainingSettings

# Options that preprocess needs too, to read the same texts.
_OF_SOURCES = ("text_field", "txt_documents", "delimiter", "subset")
_OVERWRITE = TokenizerTrainingSettings.model_fields["overwrite"].description

EXAMPLES = ("toolkit tokenizer train texts/ --vocab-size 32768 --output runs/tokenizer",)

_option = partial(option_of, TokenizerTrainingSettings)


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="As for toolkit preprocess: data sets with Parquet files on the hub, files, folders, globs.",
        ),
    ],
    vocab_size: Annotated[int, _option("vocab_size", "N")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the tokenizer; created if missing.")],
    text_field: Annotated[str | None, _option("text_field", "NAME")] = None,
    txt_documents: Annotated[str | None, _option("txt_documents", "KIND")] = None,
    delimiter: Annotated[str | None, _option("delimiter", "C")] = None,
    exclude: Annotated[list[str] | None, _option("exclude", "GLOB")] = None,
    subset: Annotated[str | None, _option("subset", "NAME")] = None,
    limit_documents: Annotated[int | None, _option("limit_documents", "N")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help=_OVERWRITE)] = False,
) -> None:
    """Train a byte-level BPE tokenizer, with end-of-text, padding and mask tokens.

    It encodes any text without loss.
    """
    given = {key: value for key, value in locals().items() if key not in ("sources", "output") and value is not None}
    from toolkit.core.console import console
    from toolkit.core.text import counted, ending
    from toolkit.preprocess.tokenizer_training import train_tokenizer

    settings = settings_from(TokenizerTrainingSettings, given)
    made = train_tokenizer(sources, output, settings=settings)
    screen = console()
    fewer = f" instead of {vocab_size:,}: too little text" if made.vocabulary_size < vocab_size else ""
    screen.print(f"{made.vocabulary_size:,} ids{fewer}; {made.bytes_per_token:.2f} bytes of text per token")
    read = counted(made.documents, "document")
    screen.print(f"from {read}, {made.text_bytes / 1e6:,.1f} MB, in {made.seconds:,.1f} s")
    for reason, count in made.skipped.items():
        screen.print(f"skipped: {count:,} rows, {reason}")
    kept = {f"--{key.replace('_', '-')}": str(given[key]) for key in _OF_SOURCES if key in given}
    words = [*sources, *(word for option in kept.items() for word in option)]
    words += [*(f"--exclude={glob}" for glob in exclude or ()), "--tokenizer", str(output)]
    screen.print(ending(f"wrote {output}", f"toolkit preprocess {shlex.join(words)} --output data/corpus"))
