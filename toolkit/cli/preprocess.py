"""`toolkit preprocess`: text files to a corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.preprocess.settings import PreprocessSettings

__all__ = ["command"]

# Documented, and built with the rest of the data path.
_LATER = {
    "workers": "--workers (parallel workers)",
    "subset": "--subset (a configuration of a data set on the hub)",
    "engine": "--engine (the fast batch encoder and its guard)",
    "holdout": "--holdout (documents kept apart by hash)",
}


def _option(key: str, metavar: str | None = None) -> Any:
    """An option whose text and default are those of the setting it sets."""
    field = PreprocessSettings.model_fields[key]
    default = field.default
    shown = "" if field.is_required() or default is None or isinstance(default, bool) else f" [default: {default}]"
    return typer.Option(metavar=metavar, help=f"{field.description}{shown}", show_default=False)


_Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE...", help="Files, folders or globs: .jsonl, .parquet, .txt, mixed.")
]
_Tokenizer = Annotated[str | None, _option("tokenizer", "TOK")]
_Output = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the corpus; made if missing.")]
_TextField = Annotated[str | None, _option("text_field", "NAME")]
_TxtDocuments = Annotated[str | None, _option("txt_documents", "KIND")]
_LimitDocuments = Annotated[int | None, _option("limit_documents", "N")]
_LimitTokens = Annotated[int | None, _option("limit_tokens", "N")]
_SequenceLength = Annotated[int | None, _option("sequence_length", "S")]
_ShardTokens = Annotated[int | None, _option("shard_tokens", "N")]
_SpecialText = Annotated[str | None, _option("special_text", "parse|literal")]
_Eod = Annotated[str | None, _option("eod", "TOKEN")]
_NoEod = Annotated[bool, typer.Option("--no-eod", help="Do not end documents with a token.")]
_NoBos = Annotated[bool, typer.Option("--no-bos", help="Leave out what the tokenizer itself puts in front of a text.")]
_MaskToken = Annotated[str | None, _option("mask_token", "MASK")]
_MaxBadFraction = Annotated[float | None, _option("max_bad_fraction", "FRACTION")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help=PreprocessSettings.model_fields["overwrite"].description)]
_NotYet = Annotated[str | None, typer.Option(hidden=True)]


def command(
    sources: _Sources,
    tokenizer: _Tokenizer = None,
    output: _Output = None,
    text_field: _TextField = None,
    txt_documents: _TxtDocuments = None,
    limit_documents: _LimitDocuments = None,
    limit_tokens: _LimitTokens = None,
    sequence_length: _SequenceLength = None,
    shard_tokens: _ShardTokens = None,
    special_text: _SpecialText = None,
    eod: _Eod = None,
    no_eod: _NoEod = False,
    no_bos: _NoBos = False,
    mask_token: _MaskToken = None,
    max_bad_fraction: _MaxBadFraction = None,
    overwrite: _Overwrite = False,
    workers: _NotYet = None,
    subset: _NotYet = None,
    engine: _NotYet = None,
    holdout: _NotYet = None,
) -> None:
    """Tokenise text into a corpus: Megatron .bin/.idx shards, corpus.json and the tokenizer.

    Interrupted and started again, it goes on behind the last finished shard and ends with the same bytes.
    """
    given = dict(locals())
    _refuse_what_is_not_built(sources, given)
    if tokenizer is None or output is None:
        from toolkit.core.errors import SettingsError

        missing = " and ".join(option for option in ("--tokenizer", "--output") if given[option[2:]] is None)
        raise SettingsError(f"{missing} must be given, for example --tokenizer FOLDER --output data/corpus.")
    positive = {"add_eod": not given.pop("no_eod"), "add_bos": not given.pop("no_bos")}
    _run(sources, output, {**positive, **{key: given[key] for key in given.keys() - _LATER - {"sources", "output"}}})


def _refuse_what_is_not_built(sources: list[str], given: dict[str, Any]) -> None:
    from toolkit.core.errors import NotAvailableError

    for option, what in _LATER.items():
        if given[option] is not None:
            raise NotAvailableError(what)
    if "fineweb-edu" in sources and not Path("fineweb-edu").exists():
        raise NotAvailableError("Preparing fineweb-edu from the hub (give local .jsonl, .parquet or .txt files)")


def _run(sources: list[str], output: Path, given: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from toolkit.core.console import console
    from toolkit.core.errors import SettingsError
    from toolkit.preprocess import preprocess
    from toolkit.preprocess.summary import notes, summary_table

    try:
        settings = PreprocessSettings.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise SettingsError(f"{option} {first['input']}: {first['msg'][0].lower()}{first['msg'][1:]}.") from error
    result = preprocess(sources, output, settings=settings)
    screen = console()
    screen.print(summary_table(result))
    for note in notes(result):
        screen.print(note)
    screen.print(f"The corpus is in {output}. Look at it with: toolkit inspect {output}")
