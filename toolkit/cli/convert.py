"""`toolkit convert`: a checkpoint into a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.conversion.forms import DEFAULT_DTYPE, DEFAULT_FORM, ExportDtype, ExportForm
from toolkit.core.errors import NotAvailableError, UserError

__all__ = ["command"]


def command(
    source: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder, or a run folder (newest).")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must not exist, or be empty.")],
    *,
    to_hf: Annotated[bool, typer.Option("--to-hf", help="Write a Hugging Face folder.")] = False,
    from_hf: Annotated[bool, typer.Option("--from-hf", hidden=True)] = False,
    form: Annotated[
        ExportForm, typer.Option(help="An encoder (EuroBertForMaskedLM) or a decoder (LlamaForCausalLM).")
    ] = DEFAULT_FORM,
    dtype: Annotated[ExportDtype, typer.Option(help="Numbers of the written weights.")] = DEFAULT_DTYPE,
    mask_token: Annotated[str | None, typer.Option("--mask-token", hidden=True)] = None,
) -> None:
    """Write a checkpoint as a folder that loads in stock transformers, and check its logits against ours."""
    if from_hf or mask_token is not None:
        raise NotAvailableError("toolkit convert --from-hf")
    if not to_hf:
        raise UserError("toolkit convert needs a direction: toolkit convert --to-hf CHECKPOINT OUT.")
    from toolkit.conversion import to_hf as convert

    report = convert(source, out, form=form, dtype=dtype)
    print(f"{report.checkpoint} (step {report.step:,}) as a {report.form} model in {report.dtype}:")
    print(f"  checked in transformers: logits up to {report.max_logit:.3g}, at most {report.max_difference:.1e} off")
    print(f"wrote {report.out}: {', '.join(report.files)}")
