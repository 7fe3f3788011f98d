"""`toolkit study`: train a family of runs from one file, every common prefix once."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.options import Device, Mfu
from toolkit.core.errors import SettingsError
from toolkit.core.signals import ended_by_stop_signals
from toolkit.work.start import ExecutorKind

EXAMPLES = (
    "toolkit study paper-from-scratch --dry-run",
    "toolkit study paper-from-scratch --dry-run --device h100 --mfu 0.4",
    "toolkit study shares.toml",
    "toolkit study shares.toml --show clm-50-seed-0",
    "toolkit study shares.toml --why clm-50-seed-0 clm-50-seed-1",
)


def command(
    study: Annotated[
        str, typer.Argument(metavar="STUDY.toml|NAME", help="A study file, or the name of a shipped one.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the models, what they share and cost; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
    executor: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Where models train: local (this machine), slurm (jobs) or ray (a Ray cluster)."
        ),
    ] = "local",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this model and those it starts from; repeatable.")
    ] = None,
    device: Device = None,
    mfu: Mfu = 0.4,
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print the run file of a model trained alone.")
    ] = None,
    tidy: Annotated[
        bool, typer.Option("--tidy", help="Remove checkpoints that no model of the study starts from any more.")
    ] = False,
    why: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="NAME NAME", help="Print how many steps two models share, and what differs next."),
    ] = None,
) -> None:
    """Train a family of runs from one file, every common prefix once; rerun it to do what is missing."""
    # Before the imports of the next line, which take seconds. Training handles its own signals.
    with ended_by_stop_signals("stopped; the same command continues"):
        from toolkit.experiments.study import program

        _check_modes({"--show": show, "--tidy": tidy, "--why": why, "--dry-run": dry_run}, only, as_json, device)
        if device and not (dry_run or as_json):
            raise SettingsError("--device is for an estimate. Add --dry-run or --json, or leave it out.")
        kind = ExecutorKind.named(executor)
        tflops = None
        if device:
            from toolkit.run.forecast import Machines

            tflops = Machines(device, mfu, num_ranks=1).tflops
        if show is not None:
            program.show_model(study, show)
        elif tidy:
            program.tidy_study(study)
        elif why is not None:
            program.show_why(study, *why)
        elif dry_run and as_json:
            print(program.study_json(study, only=only or [], tflops=tflops))
        elif dry_run:
            program.show_plan(study, only=only or [], tflops=tflops)
        else:
            # Only the JSON object goes to standard output.
            with redirect_stdout(sys.stderr if as_json else sys.stdout):
                code = program.run_study(study, only=only or [], executor=kind, report=_report)
            if as_json:
                print(program.study_json(study, only=only or [], tflops=tflops))
            raise typer.Exit(code)


def _check_modes(given: dict[str, object], only: object, as_json: bool, device: object) -> None:
    modes = [option for option, value in given.items() if value]
    unread = {} if modes in ([], ["--dry-run"]) else {"--only": only, "--json": as_json, "--device": device}
    if clashing := [*modes[1:], *(option for option, value in unread.items() if value)]:
        raise SettingsError(f"{modes[0]} does not go with {clashing[0]}. Leave one of them out.")


def _report(folder: Path) -> None:
    # Its imports take seconds.
    from toolkit.experiments.report import write_report

    write_report([folder])
