"""What each model of a study does while it trains, and the tree that says so on a terminal."""

import json

import pytest
from rich.console import Console

from tests.experiments.study.test_plan import planned, write_study
from tests.support.runs import write_run
from toolkit.execution.local import LocalExecutor
from toolkit.execution.work import NOBODY, Event, Failed, Finished, Lost, Work
from toolkit.experiments.study import live, pieces
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.live import LiveTree, StudyState
from toolkit.experiments.study.pieces import train_pieces
from toolkit.work.start import ExecutorKind

TRUNK, LEAF, ALONE = "run-clm-8", "run-clm-3-mlm40-8", "run-mlm40-6"


@pytest.fixture
def state(tmp_path):
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, ["clm 8", "clm 3 + mlm 5", "mlm 6"]))
    assert [piece.key for piece in plan.pieces] == [(TRUNK, 3), (TRUNK, 8), (LEAF, 8), (ALONE, 6)]
    return StudyState(plan, StudyFolder(tmp_path / "study"))


def words(state):
    return {name: state.of(leaf).text for name, leaf in state.tree.leaves.items()}


def write_line(state, name, step):
    """A line of a run that fills all 512 positions of a step, at 64 a second."""
    folder = state.tree.leaves[name].model.run.folder
    folder.path.mkdir(parents=True, exist_ok=True)
    line = {"step": step, "loss": 4.0, "tokens": 512 * step, "tokens_per_second": 64.0}
    folder.metrics_file.write_text(json.dumps(line) + "\n")


def drawn(state, width, height):
    screen = Console(width=width, height=height, force_terminal=True, color_system=None, soft_wrap=True)
    with screen.capture() as captured:
        screen.print(LiveTree(state))
    return captured.get().splitlines()


def test_what_each_model_does_in_words(state, tmp_path):
    assert words(state) == {
        TRUNK: "waits for its turn",
        LEAF: f"waits for {TRUNK} at 3",
        ALONE: "waits for its turn",
    }
    assert state.summary() == "0 of 19 steps, 0 of 4 pieces"
    state.begin((TRUNK, 3))
    assert words(state)[TRUNK] == "step 0 of 8"
    write_line(state, TRUNK, 2)
    state.read()
    # Six steps of 512 positions; the 11 of others are expected at as many FLOPs a second, of which MLM takes more.
    assert words(state)[TRUNK] == "step 2 of 8, 0:00:48 left"
    assert state.summary() == "2 of 19 steps, 0 of 4 pieces, 0:02:23 left"
    state.end(Lost(0, (TRUNK, 3), "signal 9"))
    assert words(state)[TRUNK] == "waits for its turn"
    state.begin((TRUNK, 3))
    state.end(Finished(0, (TRUNK, 3)))
    state.begin((LEAF, 8))
    state.end(Finished(0, (LEAF, 8)))
    state.begin((TRUNK, 8))
    state.begin((ALONE, 6))
    write_line(state, ALONE, 4)
    state.end(Failed(1, (ALONE, 6), "exit code 2"))
    assert words(state) == {
        TRUNK: "step 3 of 8, 0:00:40 left",
        LEAF: "done",
        ALONE: f"failed at 4: {tmp_path / 'study' / 'logs'}/{ALONE}@6.log",
    }
    # What failed is not waited for.
    assert state.summary() == "12 of 19 steps, 2 of 4 pieces, 0:00:40 left"


def test_what_is_not_started_says_whom_it_needs(state):
    state.begin((TRUNK, 3))
    state.end(Failed(0, (TRUNK, 3), "exit code 2"))
    for key in ((TRUNK, 8), (LEAF, 8)):
        state.end(Failed(NOBODY, key, "it needs another one"))
    assert words(state)[TRUNK].startswith("failed at 0: ")
    assert words(state)[LEAF] == f"not started: it needs {TRUNK} at 3"


def test_the_tree_never_leaves_the_terminal(state):
    state.begin((ALONE, 6))
    wide = drawn(state, 110, 30)
    assert wide[0].startswith(f"{TRUNK}  ")
    assert wide[0].endswith("8 · waits for its turn")
    assert wide[1].endswith(f"· waits for {TRUNK} at 3")
    assert len({line.index("· waits") for line in wide[:2]}) == 1
    assert wide[3:] == ["━ clm   ═ mlm   ╌ decay of the learning rate", "0 of 19 steps, 0 of 4 pieces"]
    # Without room for bars; and first what trains.
    assert drawn(state, 60, 5) == [f"{ALONE}          ▶ step 0 of 6", "more: 2 waiting", "0 of 19 steps, 0 of 4 pieces"]
    assert drawn(state, 30, 5) == [f"{ALONE}          ▶ step 0…", "more: 2 waiting", "0 of 19 steps, 0 of 4 pieces"]
    assert drawn(state, 30, 6)[0] == f"{TRUNK}            · waits …"


def test_the_tree_stands_in_place_of_lines_about_what_went_well(tmp_path, monkeypatch, capsys):
    class Failing(LocalExecutor):
        def start(self, worker: int, work: Work) -> None:
            self.key = work.key

        def wait(self, seconds: float) -> list[Event]:
            return [Finished(0, self.key) if self.key[1] == 8 else Failed(0, self.key, "exit code 2")]

    monkeypatch.setattr(pieces, "LocalExecutor", Failing)
    terminal = Console(width=100, height=30, force_terminal=True, color_system=None, soft_wrap=True)
    monkeypatch.setattr(live, "console", lambda: terminal)
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, ["clm 8", "mlm 6"]))
    assert not train_pieces(plan, StudyFolder(tmp_path / "study"), executor=ExecutorKind.LOCAL)
    printed = capsys.readouterr().out
    assert f"{ALONE}: failed on the way to step 6: exit code 2" in printed
    assert "from step" not in printed
    assert "done up to step" not in printed
    assert "✓ done" in printed
    assert "8 of 14 steps, 1 of 2 pieces" in printed
