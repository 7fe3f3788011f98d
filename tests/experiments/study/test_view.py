"""What each model of a study does while it trains, and the tree that says so on a terminal."""

import json

import pytest
from rich.console import Console

from tests.experiments.study.test_plan import planned, write_study
from tests.support.runs import write_run
from toolkit.core.locks import try_lock
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.pieces import StudyJob
from toolkit.experiments.study.view import StudyView
from toolkit.work.claims import Claims

TRUNK, LEAF, ALONE = "run-clm-8", "run-clm-3-mlm40-8", "run-mlm40-6"


class Study:
    """The view of a study without workers, and marks as they leave them."""

    def __init__(self, folder):
        write_run(folder, phase_steps=4)
        self.plan = planned(write_study(folder, ["clm 8", "clm 3 + mlm 5", "mlm 6"]))
        study = StudyFolder(folder / "study")
        job = StudyJob(folder / "work", self.plan, study)
        job.folder.mkdir()
        self.items, self.locks = {item.key: item for item in job.items}, {}
        assert list(self.items) == [f"{TRUNK}@3", f"{TRUNK}@8", f"{LEAF}@8", f"{ALONE}@6"]
        self.claims, self.view = Claims(job), StudyView(self.plan, study, job)

    def begin(self, key):
        lock = self.claims._lock_file(self.items[key])
        self.locks[key] = try_lock(lock)
        assert self.claims._begin(self.items[key])
        self.view.look()

    def end(self, key, message=None):
        self.claims.end(self.items[key], message)
        self.locks.pop(key).release()
        self.view.look()

    def words(self):
        return {name: self.view.of(leaf).text for name, leaf in self.plan.tree.leaves.items()}

    def write_line(self, name, step):
        """A line of a run that fills all 512 positions of a step, at 64 a second."""
        folder = self.plan.folder(name)
        folder.path.mkdir(parents=True, exist_ok=True)
        line = {"step": step, "loss": 4.0, "tokens": 512 * step, "tokens_per_second": 64.0}
        folder.metrics_file.write_text(json.dumps(line) + "\n")
        self.view.look()

    def drawn(self, width, height):
        screen = Console(width=width, height=height, force_terminal=True, color_system=None, soft_wrap=True)
        with screen.capture() as captured:
            screen.print(self.view.picture())
        return captured.get().splitlines()


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def test_what_each_model_does_in_words(study, tmp_path):
    assert study.words() == {
        TRUNK: "waits for its turn",
        LEAF: f"waits for {TRUNK} at 3",
        ALONE: "waits for its turn",
    }
    assert study.view.summary() == "0 of 19 steps, 0 of 4 pieces"
    study.begin(f"{TRUNK}@3")
    assert study.words()[TRUNK] == "step 0 of 8"
    study.write_line(TRUNK, 2)
    # Six steps of 512 positions; the 11 of others are expected at as many FLOPs a second, of which MLM takes more.
    assert study.words()[TRUNK] == "step 2 of 8, 0:00:48 left"
    assert study.view.summary() == "2 of 19 steps, 0 of 4 pieces, 0:02:23 left"
    # It was killed.
    study.locks.pop(f"{TRUNK}@3").release()
    study.view.look()
    assert study.words()[TRUNK] == "waits for its turn"
    study.begin(f"{TRUNK}@3")
    study.end(f"{TRUNK}@3")
    study.begin(f"{LEAF}@8")
    study.end(f"{LEAF}@8")
    study.begin(f"{TRUNK}@8")
    study.begin(f"{ALONE}@6")
    study.write_line(ALONE, 4)
    study.end(f"{ALONE}@6", "exit code 2")
    assert study.words() == {
        TRUNK: "step 3 of 8, 0:00:40 left",
        LEAF: "done",
        ALONE: f"failed at 4: {tmp_path / 'study' / 'logs'}/{ALONE}@6.log",
    }
    # What failed is not waited for.
    assert study.view.summary() == "12 of 19 steps, 2 of 4 pieces, 0:00:40 left"


def test_what_is_not_started_says_whom_it_needs(study):
    study.begin(f"{TRUNK}@3")
    study.end(f"{TRUNK}@3", "exit code 2")
    assert study.words()[TRUNK].startswith("failed at 0: ")
    assert study.words()[LEAF] == f"not started: it needs {TRUNK} at 3"


def test_the_tree_never_leaves_the_terminal(study):
    study.begin(f"{ALONE}@6")
    wide = study.drawn(110, 30)
    assert wide[0].startswith(f"{TRUNK}  ")
    assert wide[0].endswith("8 · waits for its turn")
    assert wide[1].endswith(f"· waits for {TRUNK} at 3")
    assert len({line.index("· waits") for line in wide[:2]}) == 1
    assert wide[3:] == ["━ clm   ═ mlm   ╌ decay of the learning rate", "0 of 19 steps, 0 of 4 pieces"]
    # Without room for bars; and first what trains.
    sums = ["more: 2 waiting", "0 of 19 steps, 0 of 4 pieces"]
    assert study.drawn(60, 5) == [f"{ALONE}          ▶ step 0 of 6", *sums]
    assert study.drawn(30, 5) == [f"{ALONE}          ▶ step 0…", *sums]
    assert study.drawn(30, 6)[0] == f"{TRUNK}            · waits …"


def test_the_tree_stands_in_place_of_lines_about_what_went_well(study):
    study.begin(f"{TRUNK}@3")
    study.begin(f"{ALONE}@6")
    study.end(f"{ALONE}@6", "failed on the way to step 6: exit code 2")
    assert [(line.text, line.is_news) for line in study.view.news()] == [
        (f"{TRUNK}: from step 0 to 3", False),
        (f"{ALONE}: failed on the way to step 6: exit code 2", True),
    ]
