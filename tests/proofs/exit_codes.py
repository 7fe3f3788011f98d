"""Do finished processes end with 0? `python -m tests.proofs.exit_codes [--runs 40] [--busy] [--write PAGE]`.

Runs of two ranks, in turns under tensor parallelism and under ZeRO-2, are trained by `toolkit train` one after another,
and grids of two fine-tunings by two workers each; `--busy` keeps every core at work beside them. Counted are the exit
codes, and what the processes printed that no finished one should: torch's bindings abort a process whose interpreter
ends while another thread comes back from them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.proofs.pages import made_by, write_between
from tests.support.grids import write_grid
from tests.support.layouts import Layout
from tests.support.runs import write_run

BEGIN, END = "<!-- exit codes: made by python -m tests.proofs.exit_codes -->", "<!-- end of exit codes -->"
LAYOUTS = (Layout("zero1", 2, tp=2), Layout("zero2", 2))
_ABORTED = "terminate called"


def codes_of_runs(folder: Path, number: int) -> Counter[str]:
    """How so many runs of two ranks ended."""
    run_file, ends = write_run(folder, phase_steps=6), Counter[str]()
    for count in range(number):
        layout, run = LAYOUTS[count % len(LAYOUTS)], folder / f"run-{count}"
        settings = (f"run.dir={run}", *layout.overrides)
        options = [part for setting in settings for part in ("--set", setting)]
        command = ["train", str(run_file), "--ds-config", layout.ds_config, "--num-procs", "2", *options]
        ends[_end(command)] += 1
    return ends


def codes_of_grids(folder: Path, number: int) -> Counter[str]:
    """How so many grids of two fine-tunings ended; their workers print to a log."""
    ends = Counter[str]()
    for count in range(number):
        output = folder / f"grid-{count}"
        grid = write_grid(folder, kinds=("sc",), rates=(1e-3,), output=output.name)
        ended = _end(["grid", str(grid), "--workers", "2"])
        logs = "".join(log.read_text() for log in output.rglob("worker-*.log"))
        ends[ended + (", a worker aborted" if _ABORTED in logs else "")] += 1
    return ends


def _end(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "toolkit.cli", *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    code = f"exit code {ended.returncode}" + (", aborted" if _ABORTED in ended.stdout else "")
    if code != "exit code 0":
        print(ended.stdout, flush=True)
    return code


@contextmanager
def busy(is_asked: bool) -> Iterator[None]:
    """Every core at work beside the block, where that is asked for."""
    number = len(os.sched_getaffinity(0)) if is_asked else 0
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> int:
    """Run, print, and leave with 1 where any process did not end with 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="of each kind")
    parser.add_argument("--busy", action="store_true", help="keep every core at work beside them")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result between the page's markers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="exit-codes-") as folder, busy(options.busy):
        kinds = {
            "runs of two ranks": codes_of_runs(Path(folder), options.runs),
            "grids of two workers": codes_of_grids(Path(folder), options.runs),
        }
    beside = ", every core busy with something else" if options.busy else ""
    text = f"{made_by('tests.proofs.exit_codes', packages=('deepspeed', 'torch'))}{beside}:\n\n"
    for kind, ends in kinds.items():
        text += f"- {kind}: " + "; ".join(f"{number} times {end}" for end, number in ends.items()) + "\n"
    print(text)
    if options.write is not None:
        write_between(options.write, BEGIN, END, text.rstrip())
    return 0 if all(set(ends) == {"exit code 0"} for ends in kinds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
