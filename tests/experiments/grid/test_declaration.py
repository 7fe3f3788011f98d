import pytest

from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.cells import Cell, grid_cells, grid_counts
from toolkit.experiments.grid.declaration import load_grid

MODEL = '[[model]]\nname = "m"\npath = "p"\n'
TASK = '[[task]]\nname = "t"\nkind = "sc"\ntrain = "a"\nvalidation = "b"\ntest = "c"\n'


def load(tmp_path, text):
    path = tmp_path / "rates.toml"
    path.write_text(text)
    return load_grid(path)


def test_defaults_are_the_papers(tmp_path):
    grid = load(tmp_path, MODEL + TASK)
    assert grid.grid.dir == "grids/rates"
    cells = grid_cells(grid)
    assert len(cells) == 30
    assert cells[0] == Cell("m", "t", "sc", 0, 1e-5)
    assert sorted({cell.learning_rate for cell in cells}) == [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4]
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}
    assert grid.options(grid.task[0]) == {"protocol": "standard"}


def test_a_task_has_its_own_rates_seeds_steps_and_options(tmp_path):
    head = "[grid]\nsteps = 30\nseeds = [7]\nlearning_rates = [1, 0.5]\nthreads = 3\n"
    own = "seeds = [3, 2]\nlearning_rates = [1e-3]\nsteps = 20\nlabel_column = 'gold'\nprotocol = 'paper'\n"
    grid = load(tmp_path, head + MODEL + TASK + own + TASK.replace('"t"', '"u"') + "epochs = 2\n")
    first, second = grid.task
    assert [(cell.task, cell.seed, cell.learning_rate) for cell in grid_cells(grid)] == [
        ("t", 2, 1e-3), ("t", 3, 1e-3), ("u", 7, 0.5), ("u", 7, 1.0),
    ]  # fmt: skip
    assert grid.options(first) == {"protocol": "paper", "steps": 20, "threads": 3, "label_column": "gold"}
    # Passes over the file are in place of steps.
    assert grid.options(second) == {"protocol": "standard", "threads": 3, "epochs": 2}


def test_folders_name_the_rate_as_python_writes_it():
    assert Cell("m", "t", "sc", 3, 5e-5).path == "m/t/lr-5e-05/seed-3"
    assert Cell("m", "t", "sc", 0, 0.00015).path == "m/t/lr-0.00015/seed-0"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["model is missing. A grid needs at least one [[model]]", "task is missing"]),
        (MODEL + MODEL + TASK, ["[[model]] 'm' is there twice"]),
        (MODEL + TASK + TASK, ["[[task]] 't' is there twice"]),
        (MODEL + MODEL.replace('"m"', '"M"') + TASK, ["[[model]] 'M' and 'm' differ in case alone. Rename one."]),
        ("[grid]\nseeds = [1, 1]\n" + MODEL + TASK, ["[[task]] t: seeds 1 is there twice"]),
        ("[grid]\nlearning_rates = [0]\n" + MODEL + TASK, ["grid.learning_rates.0", "above 0, got 0"]),
        ("[grid]\nseed = [1]\n" + MODEL + TASK, ["unknown key 'grid.seed'", "Did you mean 'seeds'"]),
        *(
            (
                MODEL + f"steps = {steps}\n" + TASK,
                [f"invalid value {steps} for model.0.steps", '"all", a list of steps'],
            )
            for steps in ("'every'", "'5'", "'9..2'", "'2..9:0'", "'2-9'", "5", "[]", "[-1]", "['2']")
        ),
        ('[[model]]\nname = "a/b"\npath = "p"\n' + TASK, ["model.0.name"]),
        ('[[model]]\nname = ".."\npath = "p"\n' + TASK, ["model.0.name"]),
        (MODEL.replace('"p"', '"random"') + TASK, ["so there is no shape and no tokenizer to take", "./random"]),
        (
            MODEL + MODEL.replace('"m"', '"r"').replace('"p"', '"random"') + "steps = 'all'\n" + TASK,
            ["[[model]] r: steps are of a run", "Leave steps out"],
        ),
        (MODEL + TASK + "lr = 0.1\n", ["[[task]] t: unknown key 'lr'. Did you mean 'learning_rates'?"]),
        (MODEL + TASK.replace('train = "a"\n', ""), ["[[task]] t: train missing. Give train and test, or dataset."]),
        (MODEL + TASK + "steps = 2\nepochs = 1\n", ["[[task]] t has steps and epochs. Leave one of the two out."]),
        (MODEL + TASK + "steps = 0\n", ["[[task]] t: steps = 0 trains nothing, so train cannot be set. Leave it out."]),
        (
            MODEL + '[[task]]\nname = "t"\nkind = "ir"\nsteps = 0\n',
            ["[[task]] t: test missing. Give test, or dataset."],
        ),
        (MODEL + TASK.replace('validation = "b"\n', ""), ["6 learning rates and no validation file", "a single one"]),
    ],
)
def test_mistakes_are_named(tmp_path, text, messages):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize("more", ["learning_rates = [1e-4]\n", "protocol = 'paper'\n"])
def test_one_rate_needs_no_validation_and_the_paper_cuts_its_own(tmp_path, more):
    assert load(tmp_path, MODEL + TASK.replace('validation = "b"\n', "") + more)


def test_a_named_data_set_has_files_of_its_own(tmp_path):
    task = '[[task]]\nname = "t"\nkind = "sc"\ndataset = "sst2"\n'
    assert load(tmp_path, MODEL + task).task[0].files == {}


def test_a_task_without_a_step_is_one_cell_beside_those_that_train(tmp_path):
    untrained = '[[task]]\nname = "before"\nkind = "ir"\nsteps = 0\ntest = "c"\n'
    grid = load(tmp_path, MODEL + TASK + untrained)
    assert [(cell.task, cell.learning_rate, cell.seed) for cell in grid_cells(grid)][-2:] == [
        ("t", 5e-4, 4),
        ("before", 0, 0),
    ]
    assert grid_counts(grid) == {"models": 1, "tasks": 2, "cells": 31, "trainings": 30}


def test_a_data_set_to_test_on_needs_a_training_file(tmp_path):
    task = '[[task]]\nname = "t"\nkind = "ir"\ndataset = "nanobeir"\nlearning_rates = [1e-4]\n'
    with pytest.raises(SettingsError, match=r"nanobeir has no training split\. Give train"):
        grid_counts(load(tmp_path, MODEL + task))
    assert grid_counts(load(tmp_path, MODEL + task + 'train = "pairs.csv"\n'))["trainings"] == 5
