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
)
# `toolkit preprocess fineweb-edu`, as it stands: the recipe's vocabulary with its mask token, on an open repository.
_FINEWEB_EDU = {
    "tokenizer": "EuroBERT/EuroBERT-210m",
    "subset": "sample-10BT",
    "output": Path("data/fineweb-edu"),
}


_option = partial(option_of, PreprocessSettings)

_Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="fineweb-edu, a data set with Parquet files on the hub, files, folders or globs (.parquet .jsonl .json "
        ".csv .tsv .txt; also .gz .zst .bz2 .xz); any mix of them.",
    ),
]
_Tokenizer = Annotated[str | None, _option("tokenizer", "TOK")]
_Output = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the corpus; made if missing.")]
_TextField = Annotated[str | None, _option("text_field", "NAME")]
_Subset = Annotated[str | None, _option("subset", "NAME")]
_Workers = Annotated[int | None, _option("workers", "N")]
_Engine = Annotated[str | None, _option("engine", "auto|reference")]
_Holdout = Annotated[float | None, _option("holdout", "FRACTION")]
_TxtDocuments = Annotated[str | None, _option("txt_documents", "KIND")]
_LimitDocuments = Annotated[int | None, _option("limit_documents", "N")]
_LimitTokens = Annotated[int | None, _option("limit_tokens", "N")]
_SequenceLength = Annotated[int | None, _option("sequence_length", "S")]
_ShardTokens = Annotated[int | None, _option("shard_tokens", "N")]
_SpecialText = Annotated[str | None, _option("special_text", "parse|literal")]
_Eod = Annotated[str | None, _option("eod", "TOKEN")]
_NoEod = Annotated[bool, typer.Option("--no-eod", help="Do not end documents with a token.")]
_NoBos = Annotated[bool, typer.Option("--no-bos", help="Drop the tokens that the tokenizer puts in front of a text.")]
_MaskToken = Annotated[str | None, _option("mask_token", "MASK")]
_MaxBadFraction = Annotated[float | None, _option("max_bad_fraction", "FRACTION")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help=PreprocessSettings.model_fields["overwrite"].description)]


def command(
    sources: _Sources,
    tokenizer: _Tokenizer = None,
    output: _Output = None,
    text_field: _TextField = None,
    workers: _Workers = None,
    subset: _Subset = None,
    txt_documents: _TxtDocuments = None,
    limit_documents: _LimitDocuments = None,
    limit_tokens: _LimitTokens = None,
    sequence_length: _SequenceLength = None,
    shard_tokens: _ShardTokens = None,
    engine: _Engine = None,
    special_text: _SpecialText = None,
    eod: _Eod = None,
    no_eod: _NoEod = False,
    no_bos: _NoBos = False,
    mask_token: _MaskToken = None,
    holdout: _Holdout = None,
    max_bad_fraction: _MaxBadFraction = None,
    overwrite: _Overwrite = False,
) -> None:
    """Tokenize text into a corpus: Megatron .bin/.idx shards, corpus.json and the tokenizer.

    If interrupted, run the same command again: it resumes after the last finished shard, with the same result.
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


def _run(sources: list[str], output: Path, given: dict[str, Any]) -> None:
    from toolkit.core.allocator import give_back_freed_memory
    from toolkit.core.console import console
    from toolkit.preprocess import preprocess
    from toolkit.preprocess.summary import notes, summary_table

    settings = settings_from(PreprocessSettings, given)
    give_back_freed_memory()
    result = preprocess(sources, output, settings=settings)
    screen = console()
    screen.print(summary_table(result))
    for note in notes(result):
        screen.print(note)
    if result.holdout is not None:
        screen.print(f"The held-out documents are in {output / 'holdout'}; set data.validation to this folder.")
    screen.print(f"The corpus is in {output}. Look at it with: toolkit inspect {output}")
