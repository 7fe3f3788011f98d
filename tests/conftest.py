import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import costs

TESTS = Path(__file__).parent

# One thread for each process: several run at a time. Set before anything loads a library that reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Torch's compiler has no workers then, which would outlive the test that first compiles.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# No test reaches the hub: one that needs a hub starts its own on the loopback, which the offline mode would refuse.
# Set before anything imports the client, which reads both when it is imported; child processes inherit them.
os.environ.pop("HF_HUB_OFFLINE", None)
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

# A shell that starts the suite in the background has Ctrl-C ignored, and all processes of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST_FIRST = (
    "equivalence/test_gradients.py",
    "model/test_compiled_blocks.py",
    "resume/test_layouts.py",
    "resume/test_resume.py",
    "resume/test_phases.py",
    "preprocess/test_preprocess_backends.py",
    "equivalence/test_topologies.py",
    "resume/test_branch.py",
    "model/test_encoder.py",
    "preprocess/test_preprocess_hub.py",
    "experiments/grid/test_program.py",
    "checkpoint/test_checkpoint_crash.py",
    "training/test_background_saving.py",
    "work/test_ray.py",
    "equivalence/test_activation_checkpointing.py",
)
"""Files of a quarter of a minute and more, so that no process begins one when the others are done. All files by their
seconds, after `make test`:

    awk '{split($7, a, "::"); sum[a[1]] += $4} END {for (f in sum) print sum[f], f}' build/test-costs.txt | sort -rn
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Engines, trainers and cells of grids collect garbage when they start: a second, were it not for this.

    Most of that second went into what tests have imported or traced by then, and what stays for good.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="write what each test takes to this file, the dearest first")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from costs.measured(item, "setup", costs.SETUP_SECONDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from costs.measured(item, "call", costs.CALL_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--costs")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(costs.Table(path))


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither find nor leave anything in the user's cache; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_disk_is_waited_for() -> Iterator[None]:
    """No machine loses its power in a test; one that counts or fails these calls puts its own in their place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def toolkit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Runs a command line of the toolkit in this process: exit code, standard output, standard error."""
    from toolkit.cli.main import main

    def run(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["toolkit", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real texts and tokenizers, where they lie beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    return folder


_LASTING = (
    # Of tqdm, one in a process, which looks for bars that stand still.
    "tqdm_monitor",
    # Of a hub that several tests of a file share, while a client keeps its connection; it ends with the hub.
    "process_request_thread",
    # Of a library in Rust, which called Python in it once.
    "Dummy-",
)
"""Parts of names of threads that nobody can end between two tests."""


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """Fail a test that leaves a thread behind, which would run in the middle of others and under their patches."""
    before = set(threading.enumerate())
    yield
    left = {thread for thread in set(threading.enumerate()) - before if not any(map(thread.name.count, _LASTING))}
    if left:
        # A pool that nobody holds lets its threads end when it is collected, and an error may have made a circle of it.
        gc.collect()
    deadline = time.monotonic() + 10.0
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = {thread for thread in left if thread.is_alive()}
    assert not left, f"the test leaves threads behind: {sorted(map(repr, left))}"
