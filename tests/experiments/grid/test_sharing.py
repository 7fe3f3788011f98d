"""Several commands that run one grid: who has which cells; nothing is trained."""

import errno
import fcntl
import json
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.grids import write_grid
from toolkit.core.errors import SettingsError
from toolkit.execution.work import NOBODY, Event, Failed, Finished, Work
from toolkit.experiments.grid import program as grids
from toolkit.experiments.grid import sharing
from toolkit.experiments.grid.cells import Cell, results_text
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.sharing import GridShare

Join = Callable[..., GridShare]
SCORES = {"metric": "accuracy", "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.25}}


@pytest.fixture
def plan(tmp_path: Path) -> GridPlan:
    return GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",))))


@pytest.fixture
def join(plan: GridPlan, monkeypatch: pytest.MonkeyPatch) -> Join:
    """Joins a command of a name."""

    def joined(name: str, declaration: str = "grid") -> GridShare:
        monkeypatch.setattr(sharing, "command_name", lambda: name)
        share = GridShare(plan)
        with share.locked():
            share.join(declaration)
            plan.folder.declaration_file.write_text(declaration)
        return share

    return joined


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre mounted without it."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(sharing, "SECONDS_UNTIL_SAID", 0)


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("locks", ["flock", "no_flock"])
def test_a_training_is_one_commands_until_it_gives_it_up_or_ends(
    plan: GridPlan, join: Join, request: pytest.FixtureRequest, locks: str
) -> None:
    if locks == "no_flock":
        request.getfixturevalue(locks)
    first, second, third, _ = (plan.training(cell) for cell in plan.cells)
    with join("b") as other:
        with join("a") as own:
            assert own.others() == ["b"]
            assert own.claim(first)
            assert own.claim(second)
            assert not other.claim(first)
            assert other.claim(third)
            assert not own.claim(third)
            own.release(first)
            assert other.claim(first)
        assert other.claim(second)


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_flock")
def test_what_a_lost_machine_holds_is_named_to_who_waits(
    plan: GridPlan, join: Join, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _, _ = (plan.training(cell) for cell in plan.cells)
    file = plan.folder.locks / f"{first}.claim"
    file.parent.mkdir(parents=True)
    file.write_text("4194303\nnode-17\n")
    with join("a") as own:
        assert own.claim(second)
        assert not own.claim(first)
        assert capsys.readouterr().out == "", "it is at work"
        own.release(second)
        assert [own.claim(first) for _ in range(2)] == [False, False]
        said = capsys.readouterr().out
        assert said.startswith(f"waiting for the lock {file}\nThe file system has no locks (flock); according to")
        assert said.count("process 4194303 on node-17 holds it. If that process no longer runs, remove the file.") == 1
        file.unlink()
        assert own.claim(first)


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_flock")
def test_a_command_of_a_lost_machine_is_named_with_its_file(plan: GridPlan, join: Join) -> None:
    file = plan.folder.locks / ".commands" / "lost.lock"
    file.parent.mkdir(parents=True)
    file.write_text("4194303\nnode-17\n")
    with pytest.raises(
        SettingsError, match=rf"(?s)`toolkit grid` \(lost\) is running.*{file}, process 4194303 on node-17"
    ):
        join("a")


def test_a_command_with_another_grid_file_is_refused_while_one_runs(join: Join) -> None:
    with join("a", "one"):
        with join("b", "one") as other:
            assert other.others() == ["a"]
        with pytest.raises(
            SettingsError, match=r"another `toolkit grid` \(a\) is running in .* with another grid file"
        ):
            join("b", "two")
    with join("b", "two") as alone:
        assert alone.others() == []


def test_a_cell_has_one_line_though_another_command_begins_as_it_ends(
    plan: GridPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = plan.folder.results_file
    numbers = []

    class Worker:
        """Before its command hears of a result, another one that begins has written all results."""

        workers, cells = (0,), deque[Cell]()

        def start(self, worker: int, work: Work) -> None:
            place = plan.folder.place(work.key)
            place.begin(plan.task(work.key).record)
            (place.path / "result.json").write_text(json.dumps(SCORES))
            numbers.append(len(results.read_text().splitlines()))
            results.write_text(results_text([score for cell in plan.cells if (score := plan.folder.place(cell).score)]))
            self.cells.append(work.key)

        def wait(self, seconds: float) -> list[Event]:
            return [Finished(0, self.cells.popleft())]

    monkeypatch.setattr(grids, "open_executor", lambda *_, **__: nullcontext(Worker()))
    assert grids.run_grid(plan.folder.path.with_suffix(".toml")) == 0
    assert numbers == [0, 1, 2, 3]


def test_what_others_have_ended_is_known(plan: GridPlan, join: Join) -> None:
    done, failed, failed_before, failed_again = plan.cells
    for cell in (failed_before, failed_again):
        plan.folder.place(cell).fail("broken before")
    with join("a") as own:
        assert [own.ended(cell) for cell in plan.cells] == [None] * 4
        plan.folder.place(done).begin(plan.task(done).record)
        (plan.folder.place(done).path / "result.json").write_text(json.dumps(SCORES))
        plan.folder.place(failed).fail("broken")
        plan.folder.place(failed_again).fail("broken again")
        assert [own.ended(cell) for cell in plan.cells] == [
            Finished(NOBODY, done),
            Failed(NOBODY, failed, "broken"),
            None,
            Failed(NOBODY, failed_again, "broken again"),
        ]
