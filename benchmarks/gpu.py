"""Everything that needs a GPU, in three calls of at most ten minutes each on a lent machine.

    python benchmarks/gpu.py [--call contact|numbers|rest] [--started EPOCH_SECONDS] [--out FOLDER] [--toy]

- `contact`: does it work? The machine; eight tiny runs by `launchers/pretrain.py`, each stopped and started again,
  their losses beside those of a CPU; the tests marked `gpu`; a few steps of four presets.
- `numbers`: how fast? Steps of three presets with the memory full, MLM and CLM, both kinds of windows, profiled;
  attention kernels, head, transformers' EuroBERT, forms of the code, other numbers of rows.
- `rest`: what failed in the others or was not reached, by the results in FOLDER; then all kernels and single settings.

Without a call, all of them in up to an hour. A call has 8.7 minutes from `--started` (default: now), so that installing
wheels can be counted in. Each job is a process of its own with a limit, and none starts without its least time. Each
result is at once a line of results.jsonl in FOLDER; what the processes print goes to log.txt there; a table, with what
the model of a step predicts for this card beside, is printed last. A job that fails leaves a line with its error, and
the others are still run. Without a GPU it says so and leaves with 2; `--toy` runs a call at toy size on a CPU with a
stub in the place of `torch.cuda`, so that no minute of a GPU is lost to a mistake in this code.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

from rows import RESULTS, append_row, read_rows

ROOT = Path(__file__).resolve().parents[1]
# On a machine whose host name resolves to nothing, the libraries would look for an interface for long.
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
_CALL_MINUTES, _ALL_MINUTES = 8.7, 60.0
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
    return _run_job(given) if given.child else _run_all(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", choices=["contact", "numbers", "rest"], help="default: all")
    parser.add_argument("--started", type=float, default=time.time(), help="when the minutes began, by `date +%%s`")
    parser.add_argument("--minutes", type=float, help="no job starts later, and each ends by then")
    parser.add_argument("--jobs", nargs="+", default=["*"], help="of the call, only these, such as 'step:*'")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="folder of the results")
    parser.add_argument("--toy", action="store_true", help="at toy size on a CPU: tries the code, measures nothing")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser


def _planned(given: Arguments):  # type: ignore[no-untyped-def]
    """The jobs that were asked for."""
    from gpu_calls import jobs_of
    from gpu_scale import SCALES

    jobs = jobs_of(given.call, SCALES["toy" if given.toy else "full"], read_rows(_results(given)))
    return [job for job in jobs if any(fnmatch(job.name, pattern) for pattern in given.jobs)]


def _run_job(given: Arguments) -> int:
    """Measure one job, of which a list of items may be named, until its seconds are over; its rows are kept one by one.

    What came with `rest` is a job of all calls, too.
    """
    from gpu_timing import error_row

    name, seconds, *items = given.child
    job = next(job for job in _planned(argparse.Namespace(**vars(given) | {"call": None})) if job.name == name)
    job = replace(job, items=tuple(item for item in job.items if item.name in items), folder=given.out)
    with import_module("tests.support.stub_gpu").stub_gpu() if given.toy else nullcontext():
        try:
            for row in job.measure(replace(job, limit_s=float(seconds))):
                _append(given, name, row)
        except Exception as error:
            _append(given, name, error_row(error))
    return 0


def _append(given: Arguments, name: str, row: dict[str, object]) -> None:
    append_row(_results(given), {"call": given.started, "job": name, "scale": "toy" if given.toy else "full"} | row)


def _run_all(given: Arguments) -> int:
    """Run the jobs one after the other, then show the table; returns 1 if anything failed."""
    from gpu_table import table

    num_before = len(read_rows(_results(given)))
    minutes = given.minutes or (_CALL_MINUTES if given.call and not given.toy else _ALL_MINUTES)
    stop = given.started + 60 * minutes
    for job in _planned(given):
        left = stop - time.time()
        if left < job.least_s:
            row = {"not_reached": f"{max(0.0, left):.0f} s were left, {job.least_s:g} are its least"}
        else:
            # A CPU may take longer for a toy than a GPU for all of it.
            failure = _start_job(given, job, left if given.toy else min(job.limit_s, left))
            row = {"error": failure} if failure else {}
        if row:
            _append(given, job.name, row)
        print(f"{job.name}: {next(iter(row.values()), 'ended')}; {stop - time.time():.0f} s left", file=sys.stderr)
        found = read_rows(_results(given))[num_before:]
        if any(row.get("expandable_segments") is False for row in found):
            os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"
    rows = read_rows(_results(given))[num_before:]
    shown = "\n".join(table(rows))
    (given.out / "table.txt").write_text(f"{shown}\n", encoding="utf-8")
    print(shown)
    return int(any("error" in row for row in rows))


def _start_job(given: Arguments, job, seconds: float) -> str:  # type: ignore[no-untyped-def]
    """Run a job in a process of its own; returns what is wrong if it did not end by itself, else nothing."""
    command = [sys.executable, __file__, "--out", str(given.out), "--started", str(given.started)]
    command += [*(["--toy"] if given.toy else []), "--child", job.name, str(seconds), *(one.name for one in job.items)]
    # Folders of this checkout before anything installed, so that what is measured is what is here.
    folders = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = _ENVIRONMENT | os.environ | {"PYTHONPATH": folders}
    with (given.out / "log.txt").open("a", encoding="utf-8") as log:
        print(f"=== {job.name}", file=log, flush=True)
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


def _results(given: Arguments) -> Path:
    return Path(given.out) / "results.jsonl"


if __name__ == "__main__":
    sys.exit(main())
