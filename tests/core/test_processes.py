"""A process ends as Python's own end would have it, with the code of its program, whatever its threads are doing."""

import os
import subprocess
import sys

import pytest

_START = """
import atexit, os, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
"""
_ENDS = {"python": "\nsys.exit(main())", "ours": "\nfrom toolkit.core.processes import end_after\nend_after(main)"}


def _end(program, how="ours", *, stdout=subprocess.PIPE):
    """Exit code, output and errors of a process whose `main` is in `program`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", _START + program + _ENDS[how]]
    ended = subprocess.run(
        command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_a_thread_inside_of_torch_does_not_change_the_exit_code(code):
    """Python's own end aborts here every time: it unwinds the thread through torch's bindings."""
    program = f"""
import torch
def work():
    while True:
        torch.mm(matrix, matrix)
def main():
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    atexit.register(print, "at exit")
    print("left in the buffer")
    return {code}
matrix = torch.ones(200, 200)
"""
    assert _end(program) == (code, "left in the buffer\nat exit\n", "")


@pytest.mark.parametrize(
    "program",
    [
        "def main(): print('text', end='')",
        "def main(): return 2",
        "def main(): return -1",
        "def main(): sys.exit()",
        "def main(): sys.exit(300)",
        "def main(): sys.exit('a message')",
        "def main(): sys.stdout.close()",
        "def main(): sys.stdout = None",
        # An exit function that fails, and one before it.
        "def main(): atexit.register(print, 'first'); atexit.register(lambda: 1 / 0); return 3",
        # What others wait for: a thread, and the work of a pool.
        "def main(): threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()",
        "def main(): ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.3), print('pool')))",
        # Finalizers of objects that live on.
        "kept = tempfile.TemporaryDirectory()\ndef main(): atexit.register(lambda: print(os.path.exists(kept.name)))",
    ],
)
def test_it_ends_as_python_does(program):
    code, output, _ = _end(program, "python")
    assert _end(program)[:2] == (code, output)


def test_errors_and_interrupts_are_shown():
    code, _, errors = _end("def main(): raise ValueError('a bug')")
    assert code == 1
    assert errors.endswith("ValueError: a bug\n")
    assert _end("def main(): raise KeyboardInterrupt")[0] == 130


def test_output_that_cannot_be_written_is_told():
    with open("/dev/full", "w") as full:
        told = "error: could not write what was printed: [Errno 28] No space left on device\n"
        assert _end("def main(): print('text')", stdout=full) == (120, None, told)
        # A program's own failure says more.
        assert _end("def main(): print('text'); return 3", stdout=full)[0] == 3


def test_temporary_folders_go():
    program = "kept = tempfile.TemporaryDirectory()\ndef main(): print(kept.name)"
    assert not os.path.exists(_end(program)[1].strip())
