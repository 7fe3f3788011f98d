"""`toolkit study`: train a family of runs from one file, every common prefix once."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

EXAMPLES = (
    "toolkit study paper-from-scratch --dry-run",
    "toolkit study shares.toml",
    "toolkit study shares.toml --show clm-50-seed-0",
    "toolkit study shares.toml --why clm-50-seed-0 clm-50-seed-1",
)


def command(
    study: Annotated[
        str, typer.Argument(metavar="STUDY.toml|NAME", help="A study file, or the name of a shipped one.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the models, what they share and what they take; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
    executor: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where models train: local, this machine; slurm, jobs; ray, a Ray cluster."),
    ] = "local",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This model, and those that it begins from; repeatable.")
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0.001, help="TFLOP/s that a device reaches, for GPU hours (default: the study's)."
        ),
    ] = None,
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print the run file of a model trained alone.")
    ] = None,
    tidy: Annotated[
        bool, typer.Option("--tidy", help="Remove checkpoints that no model of the study begins from any more.")
    ] = False,
    why: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="NAME NAME", help="Say how many steps two models share, and what differs then."),
    ] = None,
) -> None:
    """Train a family of runs from one file, every common prefix once; run again, it does what is missing."""
    from toolkit.experiments.study.program import run_study, show_model, show_plan, show_why, study_json, tidy_study

    if show is not None:
        show_model(study, show)
    elif tidy:
        tidy_study(study)
    elif why is not None:
        show_why(study, *why)
    elif dry_run and as_json:
        print(study_json(study, only=only or [], tflops=tflops))
    elif dry_run:
        show_plan(study, only=only or [], tflops=tflops)
    else:
        # Standard output is the object's alone.
        with redirect_stdout(sys.stderr if as_json else sys.stdout):
            code = run_study(study, only=only or [], executor=executor)
        if as_json:
            print(study_json(study, only=only or [], tflops=tflops))
        raise typer.Exit(code)
