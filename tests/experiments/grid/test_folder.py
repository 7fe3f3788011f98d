"""What a grid's folder says of its cells is read by the class that wrote it."""

import json
from pathlib import Path

import pytest

from toolkit.core.errors import UserError
from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.folder import Declaration, GridFolder

CELL = Cell("m", "t", "sc", 1, 1e-5)
SCORES = {"metric": "f1", "validation": {"f1": 0.5}, "test": {"f1": 1.0, "accuracy": 0.25}}
SCORE = Score(**CELL._asdict(), **SCORES, majority=0.125, made_by={"torch": "2.13.0"})


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = GridFolder(tmp_path)
    # A line separator that JSON does not escape.
    other = SCORE.model_copy(update={"seed": 0, "validation": None, "test": {"f1": 1.0, "accuracy_a\u2028b": 0.5}})
    folder.write_results([SCORE, other], {"m": {"t": {"learning_rate": 1e-5}}})
    assert folder.read_scores() == [other, SCORE]
    assert folder.results_file.read_text().split("\n")[1] == (
        '{"model": "m", "task": "t", "kind": "sc", "seed": 1, "learning_rate": 1e-05, "metric": "f1", '
        '"validation": {"f1": 0.5}, "test": {"f1": 1.0, "accuracy": 0.25}, "majority": 0.125, '
        '"made_by": {"torch": "2.13.0"}}'
    )
    assert folder.read_rates([SCORE]) == {("m", "t"): 1e-5}
    folder.append(SCORE)
    folder.append(SCORE.model_copy(update={"seed": 2}))
    assert [score.seed for score in folder.read_scores()] == [0, 1, 2]


def test_a_line_of_another_version_is_read(tmp_path: Path) -> None:
    """An older one lacks who made it, a newer one may say more."""
    folder = GridFolder(tmp_path)
    folder.results_file.write_text(json.dumps({**CELL._asdict(), **SCORES, "learning_rate": 1, "new": [0]}) + "\n")
    (score,) = folder.read_scores()
    assert (score.majority, score.made_by, score.learning_rate, score.main) == (None, None, 1.0, 1.0)


@pytest.mark.parametrize("number", [True, "0.5", float("inf"), None])
def test_a_result_has_finite_scores(tmp_path: Path, number: object) -> None:
    place = GridFolder(tmp_path).place(CELL)
    place.begin({})
    place.result_file.write_text(json.dumps({**SCORES, "model": "path", "test": {"f1": number}}))
    with pytest.raises(UserError, match=rf"has test\.f1 = {json.dumps(number)}, expected a finite number"):
        _ = place.score


def test_a_folder_without_a_grid_file_declares_nothing(tmp_path: Path) -> None:
    folder = GridFolder(tmp_path)
    assert not folder.is_grid()
    assert folder.read_declaration() == Declaration()
