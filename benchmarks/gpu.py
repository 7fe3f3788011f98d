"""Everything that needs a GPU, in few calls: what is there, is it right, how fast, and where the time goes.

    python benchmarks/gpu.py [--call ONE] [--sections NAME...] [--presets NAME...] [--out FOLDER] [--toy]

Sections, each in processes of its own with a time limit:

- `machine`: name, versions, whether expandable memory works (if not, the others do without), the rate of a large copy
  and of a large product; at the end again.
- `tests`: those marked `gpu`. They are reported, and what is measured does not wait for them.
- `kernels`: matrix products of the presets, attention kernels, head, pointwise layers, optimizer.
- `step`: training steps of the presets through the toolkit's own loop, one of them profiled.
- `ablations`: the 210m with one thing changed in each run.
- `peer`: transformers' EuroBERT on rows of the same size.

`--call ONE` is what fits into one call of ten minutes on a machine: steps of the presets with full memory first, then
the forms that were written for the compiler, attention, head, other numbers of rows, and the tests. Each result is at
once a line of results.jsonl in FOLDER, what the processes print goes to log.txt there, and a table, with what the model
of a step predicts beside, is printed last. A section that fails leaves a line with its error, and the others are still
run. Without a GPU it says so and leaves with 2; `--toy` runs everything at toy size on a CPU, so that no minute of a
GPU is lost to a mistake in this code.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rows import append_row

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
# On a machine whose host name resolves to nothing, the libraries would look for an interface for long.
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
_LEAST_SECONDS = 10
_TOY_MINUTES = 60.0
Arguments = argparse.Namespace


def main() -> int:
    """Run what the command line names; returns the exit code."""
    given = _parser().parse_args()
    if given.toy:
        os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
    import torch

    if not given.toy and not torch.cuda.is_available():
        print("There is no GPU that torch can use here, so there is nothing to measure.", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    return _run_child(given) if given.child else _run_all(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--call", choices=["ONE"], help="what fits into ten minutes; default: all sections, all presets"
    )
    parser.add_argument("--sections", nargs="+", help="of the call, only these")
    parser.add_argument("--presets", nargs="+", help="of the call, only these")
    parser.add_argument("--minutes", type=float, help="no section begins later, and each ends by then")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--toy", action="store_true", help="at toy size on a CPU: tries the code, measures nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser


def _planned(given: Arguments):  # type: ignore[no-untyped-def]
    """The jobs that were asked for, and the minutes they have."""
    import gpu_calls
    import gpu_scale

    call = gpu_calls.CALLS[given.call] if given.call else gpu_calls.ALL
    for option, names in (("sections", gpu_calls.SECTIONS), ("presets", gpu_scale.PRESETS)):
        if unknown := set(getattr(given, option) or ()) - set(names):
            raise SystemExit(f"--{option}: unknown {', '.join(sorted(unknown))}; available: {', '.join(names)}.")
    scale = gpu_scale.SCALES["toy" if given.toy else "full"]
    sections, presets = given.sections or gpu_calls.SECTIONS, given.presets or gpu_scale.PRESETS
    minutes = given.minutes or (_TOY_MINUTES if given.toy else call.minutes)
    return scale, gpu_calls.plan(call, scale, sections=sections, presets=presets), minutes


def _run_child(given: Arguments) -> int:
    """Measure one job; its rows are kept one by one."""
    from gpu_calls import measure_of
    from gpu_scale import Job
    from gpu_timing import error_row

    scale, jobs, _ = _planned(given)
    job = next(job for job in jobs if job.name == given.child)
    named = {"section": job.section, "job": job.name, "scale": scale.name}
    try:
        measured = Job(job.section, job.name, scale, given.out, job.preset, job.runs, given.seconds)
        for row in measure_of(job.name)(measured):
            append_row(_results(given), named | row)
    except Exception as error:
        append_row(_results(given), named | error_row(error))
    return 0


def _run_all(given: Arguments) -> int:
    """Run the jobs one after the other, then show the table; returns 1 if anything failed."""
    from gpu_table import read_rows, table

    num_before = len(read_rows(_results(given)))
    _, jobs, minutes = _planned(given)
    stop = time.monotonic() + 60 * minutes
    for job in jobs:
        # A CPU may take longer for a toy than a GPU for all of it.
        seconds = stop - time.monotonic() if given.toy else min(job.limit_s, stop - time.monotonic())
        failure = _run_job(given, job.name, seconds) if seconds > _LEAST_SECONDS else "no time was left"
        if failure:
            append_row(_results(given), {"section": job.section, "job": job.name, "error": failure})
        print(f"{job.name}: {failure or 'ended'}", file=sys.stderr, flush=True)
        found = read_rows(_results(given))[num_before:]
        if any(row.get("expandable_segments") is False for row in found):
            os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"
    rows = read_rows(_results(given))[num_before:]
    shown = "\n".join(table(rows))
    (given.out / "table.txt").write_text(f"{shown}\n", encoding="utf-8")
    print(shown)
    return int(any("error" in row for row in rows))


def _run_job(given: Arguments, name: str, seconds: float) -> str:
    """Run a job in a process of its own; returns what is wrong if it did not end by itself, else nothing."""
    command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds), "--out", str(given.out)]
    command += _passed_on(given)
    environment = _ENVIRONMENT | os.environ | {"PYTHONPATH": os.pathsep.join(_import_folders())}
    with (given.out / "log.txt").open("a", encoding="utf-8") as log:
        print(f"=== {name}", file=log, flush=True)
        # A session, since a compiling process has children.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True, text=True
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"stopped at its limit of {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "" if code == 0 else f"left with code {code}; log.txt has its output"


def _passed_on(given: Arguments) -> Iterator[str]:
    """Options that a job is chosen by."""
    if given.toy:
        yield "--toy"
    if given.call:
        yield from ("--call", given.call)
    for option in ("sections", "presets"):
        if names := getattr(given, option):
            yield from (f"--{option}", *names)


def _import_folders() -> Iterator[str]:
    """Folders of this checkout before anything installed, so that what is measured is what is here."""
    yield str(ROOT)
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def _results(given: Arguments) -> Path:
    return Path(given.out) / "results.jsonl"


if __name__ == "__main__":
    sys.exit(main())
