"""`toolkit preprocess`: text to a corpus."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.cli.options import option_of, settings_from
from toolkit.core.errors import SettingsError
from toolkit.preprocess.settings import PreprocessSettings

EXAMPLES = (
    "toolkit preprocess fineweb-edu",
    "toolkit preprocess texts/*.jsonl.gz --tokenizer meta-llama/Meta-Llama-3-8B --output data/corpus",
    "toolkit preprocess org/dataset notes/ --tokenizer runs/tokenizer --output data/corpus --holdout 0.01",
    "toolkit preprocess fineweb-edu --subset default --executor slurm --tasks 64 --workers 16",
)
# `toolkit preprocess fineweb-edu`, as it stands: the recipe's vocabulary with its mask token, on an open repository.
_FINEWEB_EDU = {
    "tokenizer": "EuroBERT/EuroBERT-210m",
    "subset": "sample-10BT",
    "output": "data/fineweb-edu",
}
_OVERWRITE = PreprocessSettings.model_fields["overwrite"].description
_option = partial(option_of, PreprocessSettings)


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="fineweb-edu, a data set with Parquet files on the hub, files, folders, globs or URLs (.parquet "
            ".jsonl .json .csv .tsv .txt; also .gz .zst .bz2 .xz); any mix of them.",
        ),
    ],
    tokenizer: Annotated[str | None, _option("tokenizer", "TOK")] = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the corpus, created if missing, or its URL.")
    ] = None,
    text_field: Annotated[str | None, _option("text_field", "NAME")] = None,
    workers: Annotated[int | None, _option("workers", "N")] = None,
    tasks: Annotated[int | None, _option("tasks", "N")] = None,
    executor: Annotated[str | None, _option("executor", "local|slurm|ray")] = None,
    subset: Annotated[str | None, _option("subset", "NAME")] = None,
    txt_documents: Annotated[str | None, _option("txt_documents", "KIND")] = None,
    delimiter: Annotated[str | None, _option("delimiter", "C")] = None,
    exclude: Annotated[list[str] | None, _option("exclude", "GLOB")] = None,
    limit_documents: Annotated[int | None, _option("limit_documents", "N")] = None,
    limit_tokens: Annotated[int | None, _option("limit_tokens", "N")] = None,
    sequence_length: Annotated[int | None, _option("sequence_length", "S")] = None,
    shard_tokens: Annotated[int | None, _option("shard_tokens", "N")] = None,
    engine: Annotated[str | None, _option("engine", "auto|reference")] = None,
    special_text: Annotated[str | None, _option("special_text", "parse|literal")] = None,
    eod: Annotated[str | None, _option("eod", "TOKEN")] = None,
    no_eod: Annotated[bool, typer.Option("--no-eod", help="Do not end documents with a token.")] = False,
    no_bos: Annotated[
        bool, typer.Option("--no-bos", help="Drop the tokens that the tokenizer puts in front of a text.")
    ] = False,
    mask_token: Annotated[str | None, _option("mask_token", "MASK")] = None,
    holdout: Annotated[float | None, _option("holdout", "FRACTION")] = None,
    near_duplicates: Annotated[float | None, _option("near_duplicates", "SIMILARITY")] = None,
    without: Annotated[list[str] | None, _option("without", "FILE|DIR[:COLUMN]")] = None,
    max_bad_fraction: Annotated[float | None, _option("max_bad_fraction", "FRACTION")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help=_OVERWRITE)] = False,
) -> None:
    """Tokenize text into a corpus: Megatron .bin/.idx shards, corpus.json and the tokenizer.

    If interrupted, run the same command again: it completes the corpus, with the same result.
    `toolkit preprocess fineweb-edu` alone prepares FineWeb-Edu's sample-10BT with EuroBERT's tokenizer in
    data/fineweb-edu.
    """
    given = dict(locals())
    if sources == ["fineweb-edu"] and not Path("fineweb-edu").exists():
        given |= {key: value for key, value in _FINEWEB_EDU.items() if given[key] is None}
    if missing := [f"--{key}" for key in ("tokenizer", "output") if given[key] is None]:
        raise SettingsError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} required, for example "
            "--tokenizer FOLDER --output data/corpus."
        )
    if eod is not None and no_eod:
        raise SettingsError(f"--eod {eod} and --no-eod contradict each other. Remove one of them.")
    given |= {"add_eod": not given.pop("no_eod"), "add_bos": not given.pop("no_bos")}
    _run(given.pop("sources"), given.pop("output"), given)


def _run(sources: list[str], output: str, given: dict[str, Any]) -> None:
    import faulthandler

    from toolkit.core.allocator import give_back_freed_memory
    from toolkit.core.console import console
    from toolkit.preprocess.program import made_before, preprocess
    from toolkit.preprocess.summary import corpus_ending, notes, summary_table
    from toolkit.preprocess.upload import write_to

    settings = settings_from(PreprocessSettings, given)
    give_back_freed_memory()
    # If a library crashes on a damaged file, show where.
    faulthandler.enable(2)
    others = {"workers", "tasks", "executor", "overwrite"}
    command = [sources, settings.model_dump(mode="json", exclude=others)]
    result = write_to(
        output,
        lambda folder: preprocess(sources, folder, settings=settings),
        command=command,
        made_before=lambda folder: made_before(sources, folder, settings=settings),
    )
    if result is None:
        return
    screen = console()
    screen.print(summary_table(result))
    for note in notes(result):
        screen.print(note)
    has_holdout = result.holdout is not None and result.holdout.documents > 0
    screen.print(corpus_ending(output, f"{output.rstrip('/')}/holdout" if has_holdout else None))
