"""Cells of several grids go into one table only if one name means the same weights and test data in all."""

import json
from pathlib import Path

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.core.errors import UserError
from toolkit.experiments.report import write_report


def _grid(folder: Path, task: str, *, weights: str = "w", test: str = "t", steps: int = 6, seed: int = 0) -> Path:
    write_finished_grid(folder, [row("m", task, seed, 0.5)])
    cell = folder / f"cells/m/{task}/lr-0.0001/seed-{seed}"
    cell.mkdir(parents=True)
    record = {
        "settings": {"steps": steps, "seed": seed, "learning_rate": 1e-4, "threads": seed + 1},
        "model": {"model.safetensors": weights},
        "data": {"train": {"train.tsv": "a"}, "test": {"test.tsv": test}},
    }
    (cell / "declared.json").write_text(json.dumps(record))
    return folder


def _other_model(folder: Path, task: str, **declared: object) -> Path:
    _grid(folder, task, **declared)  # type: ignore[arg-type]
    for file in (folder / "results.jsonl", folder / "selected.json", folder / "grid.toml"):
        file.write_text(file.read_text().replace('"m"', '"n"'))
    (folder / "cells/m").rename(folder / "cells/n")
    return folder


def test_equal_weights_and_data_make_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report([_grid(tmp_path / "one", "sst2"), _grid(tmp_path / "two", "mrpc", test="u", seed=1)])
    assert "otherwise" not in capsys.readouterr().out


def test_one_name_for_other_weights_is_refused(tmp_path: Path) -> None:
    grids = [_grid(tmp_path / "one", "sst2"), _grid(tmp_path / "two", "mrpc", weights="v")]
    with pytest.raises(UserError, match=r"the model 'm' has other weights in .*two than in .*one\. Rename it"):
        write_report(grids)
    assert not (tmp_path / "one/report").exists()


def test_one_name_for_other_test_data_is_refused(tmp_path: Path) -> None:
    grids = [_grid(tmp_path / "one", "sst2"), _other_model(tmp_path / "two", "sst2", weights="v", test="u")]
    with pytest.raises(UserError, match=r"the task 'sst2' has other test data in .*two than in .*one"):
        write_report(grids)


def test_other_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report([_grid(tmp_path / "one", "sst2"), _other_model(tmp_path / "two", "sst2", weights="v", steps=2)])
    said = " ".join(capsys.readouterr().out.split())
    assert "the task 'sst2' was trained with other settings in" in said
    assert "steps was 6 and is 2" in said
