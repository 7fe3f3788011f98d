"""`toolkit convert`: a checkpoint into a Hugging Face folder, or a Hugging Face model into a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.conversion.forms import DEFAULT_DTYPE, DEFAULT_FORM, ExportDtype, ExportForm
from toolkit.core.errors import UserError


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="With --to-hf a checkpoint or run folder (newest); with --from-hf a folder or hub id.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must not exist, or be empty.")],
    *,
    to_hf: Annotated[bool, typer.Option("--to-hf", help="Write a Hugging Face folder.")] = False,
    from_hf: Annotated[bool, typer.Option("--from-hf", help="Read a Hugging Face model into a checkpoint.")] = False,
    form: Annotated[
        ExportForm | None, typer.Option(help=f"With --to-hf: an encoder or a decoder; default {DEFAULT_FORM}.")
    ] = None,
    dtype: Annotated[
        ExportDtype | None, typer.Option(help=f"With --to-hf: numbers of the written weights; default {DEFAULT_DTYPE}.")
    ] = None,
    sentence_transformers: Annotated[
        bool, typer.Option("--sentence-transformers", help="With --to-hf: add modules that pool by the mean.")
    ] = False,
    mask_token: Annotated[
        str | None,
        typer.Option(
            "--mask-token", help="With --from-hf: auto (default), reserved, mean (a new entry), id:N or token:TEXT."
        ),
    ] = None,
) -> None:
    """Convert between this toolkit's checkpoints and Hugging Face folders; logits are compared before it is done."""
    if to_hf == from_hf:
        raise UserError(
            "toolkit convert needs one direction: toolkit convert --to-hf CHECKPOINT OUT, "
            "or toolkit convert --from-hf MODEL OUT."
        )
    if to_hf:
        if mask_token is not None:
            raise UserError(
                "--mask-token belongs to --from-hf: the tokenizer of a checkpoint is decided already. Leave it out."
            )
        _export(source, out, form or DEFAULT_FORM, dtype or DEFAULT_DTYPE, sentence_transformers)
        return
    if form is not None or dtype is not None or sentence_transformers:
        raise UserError(
            "--form, --dtype and --sentence-transformers belong to --to-hf; an import is always whole. Leave them out."
        )
    _import(source, out, mask_token)


def _export(source: str, out: Path, form: ExportForm, dtype: ExportDtype, sentence_transformers: bool) -> None:
    from toolkit.conversion import to_hf

    report = to_hf(source, out, form=form, dtype=dtype, sentence_transformers=sentence_transformers)
    print(f"{report.checkpoint} (step {report.step:,}) as a {report.form} model in {report.dtype}:")
    print(f"  {report.architecture}")
    for note in report.notes:
        print(f"  {note}")
    print(f"  checked in transformers: logits up to {report.max_logit:.3g}, at most {report.max_difference:.1e} off")
    print(f"wrote {report.out}: {', '.join(report.files)}")


def _import(source: str, out: Path, mask_token: str | None) -> None:
    from toolkit.conversion import from_hf
    from toolkit.conversion.importing import DEFAULT_MASK_TOKEN

    report = from_hf(source, out, mask_token=DEFAULT_MASK_TOKEN if mask_token is None else mask_token)
    print(f"{report.model} ({report.family}, {report.num_parameters:,} parameters) as a checkpoint:")
    for change in report.changes:
        print(f"  {change}")
    print(f"  checked in transformers: logits up to {report.max_logit:.3g}, at most {report.max_difference:.1e} off")
    print(f"wrote {report.out}. Next:")
    print(f"  toolkit preprocess YOUR_TEXT --tokenizer {report.out} --output data/mine")
    print(f"  toolkit train adapt --set init.from={report.out} --set data.train=data/mine")
