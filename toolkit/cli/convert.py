"""`toolkit convert`: checkpoints to Hugging Face folders and back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.conversion.forms import (
    DEFAULT_DTYPE,
    DEFAULT_FORM,
    DEFAULT_HEAD,
    ExportArchitecture,
    ExportDtype,
    ExportForm,
    ImportHead,
)
from toolkit.core.errors import UserError
from toolkit.core.text import ending, quoted, set_option, terminal_safe

if TYPE_CHECKING:
    from toolkit.conversion.exporting import ConversionReport
    from toolkit.conversion.importing import ImportReport

EXAMPLES = (
    "toolkit convert --to-hf runs/mine hf-encoder --sentence-transformers",
    "toolkit convert --to-hf runs/mine hf-served --architecture llama --sentence-transformers",
    "toolkit convert --to-hf runs/mine/checkpoints/step-00001000 hf-decoder --form causal",
    "toolkit convert --from-hf Qwen/Qwen3-0.6B-Base checkpoints/qwen3",
    "toolkit convert --from-hf runs/scifact/model checkpoints/embedder --head new",
    "toolkit convert --from-hf answerdotai/ModernBERT-base checkpoints/medical --tokenizer tokenizers/medical",
)


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="With --to-hf: a checkpoint, or a run folder (newest checkpoint). With --from-hf: a folder or hub id.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must not exist or must be empty.")],
    *,
    to_hf: Annotated[bool, typer.Option("--to-hf", help="Export a Hugging Face folder.")] = False,
    from_hf: Annotated[bool, typer.Option("--from-hf", help="Import a Hugging Face model as a checkpoint.")] = False,
    form: Annotated[
        ExportForm | None, typer.Option(help=f"With --to-hf: encoder or decoder. [default: {DEFAULT_FORM}]")
    ] = None,
    architecture: Annotated[
        ExportArchitecture | None,
        typer.Option(
            help="With --to-hf: transformers classes, of the model's family; servers such as vLLM take llama. "
            "[default: the encoder's; the decoder's for --form causal and with QK-norm]"
        ),
    ] = None,
    dtype: Annotated[
        ExportDtype | None, typer.Option(help=f"With --to-hf: dtype of the weights. [default: {DEFAULT_DTYPE}]")
    ] = None,
    sentence_transformers: Annotated[
        bool, typer.Option("--sentence-transformers", help="With --to-hf: add a mean-pooling module.")
    ] = False,
    mask_token: Annotated[
        str | None,
        typer.Option(
            metavar="MASK",
            help="With --from-hf: auto, reserved, mean (a new entry), id:N or token:TEXT. [default: auto]",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENIZER", help="With --from-hf: a new tokenizer, as for preprocess. [default: its own]"
        ),
    ] = None,
    head: Annotated[
        ImportHead | None,
        typer.Option(help=f"With --from-hf: new initializes what the model's head lacks. [default: {DEFAULT_HEAD}]"),
    ] = None,
) -> None:
    """Convert between this toolkit's checkpoints and Hugging Face folders; both models' logits are compared."""
    if to_hf == from_hf:
        raise UserError(
            "expected exactly one of --to-hf and --from-hf: toolkit convert --to-hf CHECKPOINT OUT, "
            "or toolkit convert --from-hf MODEL OUT."
        )
    if to_hf:
        for option, given in (("--mask-token", mask_token), ("--tokenizer", tokenizer), ("--head", head)):
            if given is not None:
                raise UserError(f"{option} applies to --from-hf only: a checkpoint is already complete. Remove it.")
        _export(source, out, form or DEFAULT_FORM, architecture, dtype or DEFAULT_DTYPE, sentence_transformers)
        return
    if sentence_transformers or any(given is not None for given in (form, architecture, dtype)):
        raise UserError("--form, --architecture, --dtype, --sentence-transformers apply to --to-hf only. Remove them.")
    _import(source, out, mask_token, tokenizer, head or DEFAULT_HEAD)


def _export(
    source: str,
    out: Path,
    form: ExportForm,
    architecture: ExportArchitecture | None,
    dtype: ExportDtype,
    sentence_transformers: bool,
) -> None:
    from toolkit.conversion import to_hf

    report = to_hf(
        source, out, form=form, architecture=architecture, dtype=dtype, sentence_transformers=sentence_transformers
    )
    print(f"{report.checkpoint} (step {report.step:,}) as a {report.form} model in {report.dtype}:")
    print(f"  {report.architecture}")
    for note in report.notes:
        print(terminal_safe(f"  {note}"))
    print(f"  {_comparison(report)}")
    name, wrote = quoted(report.out), f"wrote {report.out}: {', '.join(report.files)}"
    use = f"score {name} --pairs PAIRS" if report.form == "causal" else f"finetune sc {name} --train TRAIN --test TEST"
    print(ending(wrote, f"toolkit {use} --output OUT"))


def _import(source: str, out: Path, mask_token: str | None, tokenizer: str | None, head: ImportHead) -> None:
    from toolkit.conversion import from_hf
    from toolkit.conversion.importing import DEFAULT_MASK_TOKEN

    policy = DEFAULT_MASK_TOKEN if mask_token is None else mask_token
    report = from_hf(source, out, mask_token=policy, tokenizer=tokenizer, head=head)
    print(f"{report.model} ({report.family}, {report.num_parameters:,} parameters) as a checkpoint:")
    for change in report.changes:
        print(terminal_safe(f"  {change}"))
    print(f"  {_comparison(report)}")
    options = f"--tokenizer {quoted(report.out)}{report.preprocess_options} --output data/mine --holdout 0.001"
    data = "--set data.train=data/mine --set data.validation=data/mine/holdout"
    train = f"toolkit train adapt {set_option('init.from', report.out)} {data}"
    print(ending(f"wrote {report.out}", f"toolkit preprocess YOUR_TEXT {options}", train))


def _comparison(report: "ConversionReport | ImportReport") -> str:
    return (
        f"compared in transformers: logits up to {report.max_logit:.3g}, largest difference {report.max_difference:.1e}"
    )
