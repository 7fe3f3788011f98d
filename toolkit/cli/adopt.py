"""`toolkit adopt`: Megatron-LM's shard files, in place, as a corpus."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = ("toolkit adopt megatron/part-*.bin --tokenizer meta-llama/Meta-Llama-3-8B --output data/adopted",)


def command(
    prefixes: Annotated[
        list[str],
        typer.Argument(metavar="PREFIX", help="Shard files, with or without .bin or .idx; globs too."),
    ],
    tokenizer: Annotated[str, typer.Option(metavar="TOK", help="The tokenizer that the shards were encoded with.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the corpus; created if missing.")],
    eod: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Token that ends a document; default: the tokenizer's own.")
    ] = None,
    mask_token: Annotated[
        str, typer.Option(metavar="MASK", help="auto, token:TEXT or id:N, as for preprocess.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an adopted corpus.")] = False,
) -> None:
    """Use Megatron-LM's .bin/.idx files in place: scan them, add corpus.json and the tokenizer."""
    from toolkit.preprocess.adoption import adopt
    from toolkit.preprocess.summary import corpus_ending

    found = adopt(prefixes, output, tokenizer=tokenizer, eod=eod, mask_token=mask_token, overwrite=overwrite)
    print(found)
    print(corpus_ending(str(output)))
