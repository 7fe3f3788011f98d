"""Is the suite worth its name? Plants faults one at a time in a copy of the source and expects tests to fail.

    python tests/planted_faults.py             all faults, two at a time
    python tests/planted_faults.py mask rope   only those with a word in their name
    python tests/planted_faults.py --sample 10 as many, drawn by the commit: others with the next one
    python tests/planted_faults.py --check     only see that every fault still fits the source

The faults are in `planted_faults.txt`. A block is `@`, a file, and the tests that have to notice; then for each fault
its name, the text (`-`) and what replaces it (`+`, none: nothing), line by line, of lines or of a part of one. A line
break at a text's end is an empty line more. A fault is caught when its tests fail; tests that cannot even be
collected, or that hang, prove nothing and count as a miss. Leaves with 0 when all but one in a hundred are caught, 1
when more slip through, 2 when a fault no longer fits or the tests fail without any fault.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("toolkit", "tokenization", "launchers", "ds_configs", "docs", "tests"),
    *("pyproject.toml", "README.md", "LICENSE"),
)
ALLOWED_MISSES = 0.01
SECONDS_FOR_ONE_FAULT = 200
SECONDS_FOR_ALL_TESTS = 1200
WORKERS = 2


@dataclass(frozen=True)
class Fault:
    """One mistake somebody could make: `old` (found exactly once in `path`) becomes `new`; `tests` have to notice.

    Tests are files; one test of a file where the whole file takes minutes.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_faults(text: str) -> list[Fault]:
    """Those of a file in the form that `tests/planted_faults.txt` has."""
    faults = []
    for block in text.strip().split("\n\n"):
        place, *lines = block.split("\n")
        mark, path, *tests = place.split(" ")
        assert mark == "@", f"expected '@ PATH TESTS', found {place!r}"
        for is_change, group in groupby(lines, key=lambda line: line[:1] in ("-", "+")):
            if not is_change:
                *_, name = group
                continue
            texts: dict[str, list[str]] = {"-": [], "+": []}
            for line in group:
                texts[line[0]].append(line[1:])
            faults.append(Fault(name, path, "\n".join(texts["-"]), "\n".join(texts["+"]), tuple(tests)))
    return faults


FAULTS = read_faults((ROOT / "tests" / "planted_faults.txt").read_text(encoding="utf-8"))


def misfits(faults: Iterable[Fault], root: Path = ROOT) -> list[str]:
    """Faults that no longer fit the source: moved text, missing tests, or a replacement that is not Python."""
    problems = []
    for fault in faults:
        source = (root / fault.path).read_text(encoding="utf-8") if (root / fault.path).is_file() else ""
        if (times := source.count(fault.old)) != 1:
            problems.append(f"{fault.name}: {fault.path} has its text {times} times, not once: {fault.old!r}")
            continue
        problems += [
            f"{fault.name}: there is no {test}" for test in fault.tests if not (root / test.split("::")[0]).is_file()
        ]
        try:
            compile(source.replace(fault.old, fault.new), fault.path, "exec")
        except SyntaxError as error:
            problems.append(f"{fault.name}: with it, {fault.path} is not Python any more: {error}")
    return problems


def _copy_tree(target: Path) -> Path:
    """The source without caches and without the environment."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, target / name)
    return target


def _environment(copy: Path) -> dict[str, str]:
    # No bytecode: it is told apart by size and second, and a fault may keep both.
    mine = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    # A test that takes long has noticed nothing.
    mine["TEST_CPU_SECONDS"] = "inf"
    return {**os.environ, **mine}


def _run_tests(copy: Path, tests: Sequence[str], *, seconds: float) -> tuple[int | None, str]:
    """Exit status of pytest (None: it hung) and what it printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # Tests start processes of their own; the session is theirs alone.
        os.killpg(process.pid, 9)
        return None, process.communicate()[0]
    return process.returncode, output


def _plant(fault: Fault, copy: Path) -> tuple[bool, str]:
    """Whether the tests notice, and one line about it."""
    path, started = copy / fault.path, time.monotonic()
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(fault.old, fault.new), encoding="utf-8")
    try:
        status, output = _run_tests(copy, fault.tests, seconds=SECONDS_FOR_ONE_FAULT)
    finally:
        path.write_text(original, encoding="utf-8")
    seconds = f"{time.monotonic() - started:5.1f} s"
    if status == 1:
        by = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "").split(" - ")[0]
        return True, f"caught  {seconds}  {fault.name}  ({by})"
    why = {0: "all tests passed", None: "the tests hung"}.get(status, f"pytest left with {status}:\n{output[-2000:]}")
    return False, f"MISSED  {seconds}  {fault.name}  ({why})"


def _imports_the_copy(copy: Path) -> bool:
    code = "import toolkit, tokenization; print(toolkit.__file__, tokenization.__file__)"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=_environment(copy), capture_output=True, text=True, check=True
    )
    return all(name.startswith(str(copy)) for name in finished.stdout.split())


def _failing_without_faults(copies: Sequence[Path], faults: Sequence[Fault]) -> list[str]:
    """What fails before any fault is planted; such tests would seem to catch everything."""
    tests = sorted({test for fault in faults for test in fault.tests})
    shares = [tests[number :: len(copies)] for number in range(len(copies))]
    with ThreadPoolExecutor(len(copies)) as pool:
        results = pool.map(
            lambda pair: _run_tests(*pair, seconds=SECONDS_FOR_ALL_TESTS) if pair[1] else (0, ""),
            zip(copies, shares, strict=True),
        )
    return [f"{output}\n(status {status}; None: out of time)" for status, output in results if status != 0]


def plant_all(faults: Sequence[Fault]) -> int:
    """Plant them all; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        copies = [_copy_tree(Path(folder).resolve() / str(number)) for number in range(WORKERS)]
        assert all(_imports_the_copy(copy) for copy in copies), "tests would run on another checkout"
        if failing := _failing_without_faults(copies, faults):
            print("The tests fail without any fault:\n", *failing, sep="\n")
            return 2
        free: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def plant_one(fault: Fault) -> bool:
            copy = free.get()
            try:
                is_caught, line = _plant(fault, copy)
            finally:
                free.put(copy)
            print(line, flush=True)
            return is_caught

        with ThreadPoolExecutor(WORKERS) as pool:
            num_caught = sum(pool.map(plant_one, faults))
    needed = len(faults) - int(ALLOWED_MISSES * len(faults))
    print(f"{num_caught} of {len(faults)} faults caught; {needed} are needed.")
    return 0 if num_caught >= needed else 1


def drawn(faults: Sequence[Fault], number: int, *, commit: str) -> list[Fault]:
    """So many of the faults, equal ones for equal commits."""
    return random.Random(commit).sample(faults, min(number, len(faults)))


def _commit() -> str:
    """The one that is checked out; empty where git cannot tell."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="plant only faults with one of these in their name")
    parser.add_argument("--sample", type=int, help="plant only so many of them, drawn by the commit")
    parser.add_argument("--check", action="store_true", help="plant nothing; see that every fault fits the source")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if not arguments.words or any(word in fault.name for word in arguments.words)]
    if arguments.sample is not None:
        chosen = drawn(chosen, arguments.sample, commit=_commit())
    if problems := misfits(chosen):
        print("These faults no longer fit the source; repair them in tests/planted_faults.txt:", *problems, sep="\n")
        return 2
    return 0 if arguments.check else plant_all(chosen)


if __name__ == "__main__":
    sys.exit(main())
