"""Successive halving, round by round, on scores given by hand."""

from itertools import pairwise

from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.selection import halve

RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)


def cell(rate, seed, model="m"):
    return Cell(model, "t", "sc", seed, rate)


def score(of, value):
    return Score(**of._asdict(), metric="accuracy", validation={"accuracy": value}, test={"accuracy": 1 - value})


def grid(models=("m",), rates=RATES, num_seeds=5):
    return [cell(rate, seed, model) for model in models for rate in rates for seed in range(num_seeds)]


def run(cells, value, *, broken=()):
    """Rounds until nothing is wanted: the cells of each."""
    scores, failed, rounds = {}, {}, []
    while wanted := halve(cells, scores, failed).wanted:
        rounds.append(list(wanted))
        for one in wanted:
            if one in broken:
                failed[one] = "broken"
            else:
                scores[one] = score(one, value(one))
    return rounds, halve(cells, scores, failed).dropped


def test_six_rates_and_five_seeds_take_fourteen_cells():
    rounds, dropped = run(grid(), lambda one: one.learning_rate)
    assert [[(one.learning_rate, one.seed) for one in members] for members in rounds] == [
        [(rate, 0) for rate in RATES],
        [(1e-4, 1), (2e-4, 1), (5e-4, 1)],
        [(2e-4, 2), (2e-4, 3), (5e-4, 2), (5e-4, 3)],
        [(5e-4, 4)],
    ]
    assert [(one.learning_rate, one.num_seeds) for one in dropped] == [
        (1e-5, 1),
        (2e-5, 1),
        (5e-5, 1),
        (1e-4, 2),
        (2e-4, 4),
    ]
    assert (dropped[0].mean, dropped[0].kept) == (1e-5, 1e-4)


def test_the_mean_over_the_seeds_so_far_decides_and_validation_does():
    # The first seed prefers 1e-5, both together 2e-5; the test score prefers the opposite throughout.
    values = {(1e-5, 0): 0.9, (2e-5, 0): 0.8, (5e-5, 0): 0.1, (1e-5, 1): 0.1, (2e-5, 1): 0.5}
    rounds, dropped = run(
        grid(rates=RATES[:3], num_seeds=3), lambda one: values.get((one.learning_rate, one.seed), 0.0)
    )
    assert [one.learning_rate for one in dropped] == [5e-5, 1e-5]
    assert [(one.learning_rate, one.seed) for one in rounds[-1]] == [(2e-5, 2)]


def test_of_equal_means_the_smaller_rates_go_on():
    _, dropped = run(grid(rates=RATES[:4], num_seeds=2), lambda _: 0.5)
    assert [one.learning_rate for one in dropped] == [5e-5, 1e-4]


def test_means_that_differ_by_rounding_alone_are_equal():
    rates = RATES[:2]
    _, dropped = run(grid(rates=rates, num_seeds=2), lambda one: 0.1 + 0.2 if one.learning_rate == rates[1] else 0.3)
    assert [one.learning_rate for one in dropped] == [rates[1]]


def test_models_are_halved_apart_and_a_round_may_be_cut_short():
    cells = grid(models=("a", "b"), rates=RATES[:2], num_seeds=2)
    scores = {one: score(one, one.learning_rate) for one in cells if one.model == "a" and one.seed == 0}
    wanted = halve(cells, scores, {}).wanted
    assert [(one.model, one.learning_rate, one.seed) for one in wanted] == [
        ("a", 2e-5, 1),
        ("b", 1e-5, 0),
        ("b", 2e-5, 0),
    ]


def test_a_rate_with_a_failed_cell_is_dropped_and_one_that_all_failed_ends():
    best = cell(5e-4, 0)
    rounds, dropped = run(grid(), lambda one: one.learning_rate, broken={best})
    assert (dropped[2].learning_rate, dropped[2].mean, dropped[2].kept) == (5e-4, None, 5e-5)
    assert {one.learning_rate for one in rounds[-1]} == {2e-4}
    assert len(run(grid(), lambda _: 0.5, broken=set(grid()))[0]) == 1


def test_a_single_rate_and_a_single_seed_run_whole():
    assert [len(members) for members in run(grid(rates=RATES[:1]), lambda _: 0.5)[0]] == [5]
    assert [len(members) for members in run(grid(num_seeds=1), lambda _: 0.5)[0]] == [6]


def test_what_was_run_is_never_wanted_again():
    rounds, _ = run(grid(), lambda one: -one.learning_rate)
    assert all(set(first).isdisjoint(second) for first, second in pairwise(rounds))
