"""Choice of learning rates, on cases done by hand."""

import json

import pytest

from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.selection import select


def cells_of(scores, *, model="m", task="t"):
    return [Cell(model, task, "sc", seed, rate) for rate, seeds in scores.items() for seed in range(len(seeds))]


def scored(scores, *, model="m", task="t"):
    """From {rate: [(validation, test) by seed]}; None where a seed has not finished."""
    return [
        Score(
            **Cell(model, task, "sc", seed, rate)._asdict(),
            metric="accuracy",
            validation={"accuracy": pair[0]},
            test={"accuracy": pair[1]},
        )
        for rate, seeds in scores.items()
        for seed, pair in enumerate(seeds)
        if pair is not None
    ]


def chosen(scores):
    return select(cells_of(scores), scored(scores))["m"]["t"]


def test_a_rate_without_validation_is_not_chosen_among_several():
    """Results of an older version may lack it."""
    unvalidated = [
        score.model_copy(update={"validation": None}) for score in scored({1e-4: [(0.5, 0.1)], 1e-3: [(0.8, 0.2)]})
    ]
    assert select([score.cell for score in unvalidated], unvalidated) == {}
    assert select([unvalidated[0].cell], unvalidated)["m"]["t"]["learning_rate"] == 1e-4


def test_the_best_mean_over_seeds_wins_and_test_is_reported():
    entry = chosen({1e-4: [(0.5, 0.1), (0.9, 0.3)], 1e-3: [(0.8, 0.2), (0.8, 0.6)], 1e-2: [(0.95, 0.9), (0.1, 0.9)]})
    assert entry == {
        "learning_rate": 1e-3,
        "metric": "accuracy",
        "test_mean": pytest.approx(0.4, abs=1e-15),
        # sqrt((0.2^2 + 0.2^2) / (2 - 1))
        "test_std": pytest.approx(0.08**0.5, abs=1e-15),
        "seeds": [0, 1],
    }


@pytest.mark.parametrize(
    ("means", "rate"),
    [
        ((0.7, 0.7, 0.6), 1e-4),
        ((0.7, 0.7 + 9e-13, 0.6), 1e-4),
        ((0.7, 0.7 + 2e-12, 0.6), 1e-3),
        # Each within 1e-12 of its neighbour, the first not of the best.
        ((0.7, 0.7 + 8e-13, 0.7 + 16e-13), 1e-3),
    ],
)
def test_ties_go_to_the_smaller_rate(means, rate):
    scores = {rate: [(mean, 0.5)] for rate, mean in zip((1e-4, 1e-3, 1e-2), means, strict=True)}
    # Whatever the order of the declaration.
    assert chosen(scores)["learning_rate"] == chosen(dict(reversed(scores.items())))["learning_rate"] == rate


def test_seeds_in_another_order_and_sums_that_round_are_ties():
    assert chosen({1e-4: [(0.1, 0), (0.2, 0), (0.3, 0)], 1e-3: [(0.3, 0), (0.2, 0), (0.1, 0)]})["learning_rate"] == 1e-4


def test_one_seed_has_no_deviation():
    assert chosen({1e-4: [(0.5, 0.25)]})["test_std"] is None


def test_a_rate_with_a_seed_that_is_missing_cannot_win():
    assert chosen({1e-4: [(0.5, 0.1), (0.5, 0.1)], 1e-3: [(0.9, 0.9), None]})["learning_rate"] == 1e-4


def test_a_task_without_a_whole_rate_is_left_out():
    scores = {1e-4: [(0.5, 0.1), None]}
    assert select(cells_of(scores), scored(scores)) == {}


def test_a_single_rate_needs_no_validation():
    cell = Cell("m", "t", "sc", 0, 1e-4)
    assert select([cell], [Score(**cell._asdict(), metric="f1", test={"f1": 0.5})])["m"]["t"]["test_mean"] == 0.5


def test_models_and_tasks_are_apart():
    low, high = {1e-4: [(0.9, 0.1)], 1e-3: [(0.1, 0.2)]}, {1e-4: [(0.1, 0.3)], 1e-3: [(0.9, 0.4)]}
    places = [("a", "x", low), ("a", "y", high), ("b", "x", high)]
    cells = [cell for model, task, scores in places for cell in cells_of(scores, model=model, task=task)]
    found = select(cells, [s for model, task, scores in places for s in scored(scores, model=model, task=task)])
    rates = {(model, task): entry["test_mean"] for model, tasks in found.items() for task, entry in tasks.items()}
    assert rates == {("a", "x"): 0.1, ("a", "y"): 0.4, ("b", "x"): 0.4}


def test_results_are_sorted_by_their_keys(tmp_path):
    scores = [*scored({1e-2: [(0, 0)], 1e-4: [(0, 0)] * 2}, model="b"), *scored({1e-3: [(0, 0)]}, model="a")]
    folder = GridFolder(tmp_path)
    folder.write_results(scores, {})
    rows = [json.loads(line) for line in folder.results_file.read_text().splitlines()]
    assert [(row["model"], row["seed"], row["learning_rate"]) for row in rows] == [
        ("a", 0, 1e-3), ("b", 0, 1e-4), ("b", 0, 1e-2), ("b", 1, 1e-4),
    ]  # fmt: skip
    assert " ".join(rows[0]) == "model task kind seed learning_rate metric validation test majority made_by"
