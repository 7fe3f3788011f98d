"""Models that diverge: an outcome, as for cells of a grid, while the others are trained, fine-tuned and reported."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.experiments.study.test_plan import planned, write_study
from tests.support.grids import write_data
from tests.support.runs import write_run
from toolkit.experiments.report.compare.score_tables import study_table
from toolkit.experiments.report.read.study import read_study
from toolkit.experiments.study import program
from toolkit.experiments.study.plan import StudyPlan
from toolkit.experiments.study.program import open_study, run_study
from toolkit.run.folder import RunFolder
from toolkit.testing.distributed import run_distributed

pytestmark = pytest.mark.costs(10)

TRUNK, LEAF, SOUND = "run-clm-8", "run-clm-4-mlm40-8", "run-mlm40-6"
_DIVERGING = '[[models]]\nset.lr.peak = 1e30\naxes.schedule = ["clm 8", "clm 4 + mlm 4"]\n'


@dataclass(frozen=True)
class Pieces:
    """Trains the pieces of a study whose checkpoints are there, in this process; some diverge."""

    source: str

    def __call__(self) -> None:
        from toolkit.core.errors import NonFiniteError
        from toolkit.run.load import load_run
        from toolkit.training import pretrain

        study, tree = open_study(self.source)
        plan = StudyPlan(study, tree)
        failed = set()
        for piece in plan.pieces:
            if piece.needs in failed:
                failed.add(piece.key)
                continue
            try:
                pretrain(load_run(str(plan.folder(piece.name).settings_file)), ds_config="zero0", until=piece.until)
            except NonFiniteError:
                failed.add(piece.key)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A sound model, and two that diverge at their second step, which is common to both."""

    def train(plan, folder, executor):
        trained.append([piece.key for piece in plan.pieces])
        run_distributed([Pieces(source)], world_size=1)
        return False

    trained, reported = [], []
    monkeypatch.setattr(program, "_train", train)
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["mlm 6"])
    Path(source).write_text(Path(source).read_text() + _DIVERGING)
    return source, trained, reported


def test_a_model_that_diverges_is_an_outcome(study, tmp_path, capsys):
    source, trained, reported = study
    for _ in range(2):
        assert run_study(source, report=reported.append) == 0
    # Not at each call.
    assert trained == [[(TRUNK, 4), (TRUNK, 8), (LEAF, 8), (SOUND, 6)]]
    assert reported == [tmp_path / "study"] * 2
    told = capsys.readouterr().out
    assert f"1 of 3 models trained in {tmp_path}/study" in told
    for name in (TRUNK, LEAF):
        assert re.search(rf"{name}: diverged at step 2, which stays .* remove .*/runs/{name}/diverged\.json", told)
    table = study_table(read_study(tmp_path / "study"), None, name="study", title="Study")
    assert [row[0] for row in table.rows] == [f"{TRUNK} (diverged at step 2)", f"{LEAF} (diverged at step 2)", SOUND]

    # In the grid are the others.
    text, task = Path(source).read_text(), write_data(tmp_path / "data")["sc"]
    Path(source).write_text(f"{text}\n[grid]\nlearning_rates = [1e-3]\n[[task]]\nname = 'S'\nkind = 'sc'\n{task}\n")
    plan = planned(source)
    made = {name: plan.done(name) for name in plan.tree.leaves}
    assert [entry.name for entry in program.grid_of(plan.study, plan.tree, made=made).model] == [SOUND]

    # What parts from them before their second step is trained, and so are they with other settings.
    Path(source).write_text(text.replace('"clm 4 + mlm 4"', '"clm 4 + mlm 4", "clm 1 + mlm 3"'))
    assert [piece.key for piece in planned(source).pieces] == [(TRUNK, 1), ("run-clm-1-mlm40-4", 4)]
    Path(source).write_text(text.replace("1e30", "1e-3"))
    assert [piece.key for piece in planned(source).pieces] == [(TRUNK, 4), (TRUNK, 8), (LEAF, 8)]
    assert run_study(source, report=reported.append) == 0
    assert not RunFolder(tmp_path / "study" / "runs" / TRUNK).diverged_file.exists()
    assert "all of 3 models trained" in capsys.readouterr().out


def test_a_model_that_fails_leaves_the_others_their_report_and_the_study_a_code(study, tmp_path, monkeypatch, capsys):
    source, _, reported = study
    text = Path(source).read_text().replace(_DIVERGING, '[[models]]\naxes.schedule = ["clm 8"]\n')
    Path(source).write_text(text)
    monkeypatch.setattr(program, "_train", lambda plan, folder, executor: False)
    assert run_study(source, report=reported.append) == 1
    assert reported == [tmp_path / "study"]
    assert f"not trained: {TRUNK}" in capsys.readouterr().out
