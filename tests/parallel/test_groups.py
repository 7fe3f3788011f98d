"""Process groups of many ranks, as far as one process can tell: which are asked for."""

import time

import pytest

from toolkit.parallel import groups
from toolkit.parallel.topology import Topology


@pytest.fixture
def asked(monkeypatch):
    """Groups that were asked for: this rank's own, and lists of all."""
    own, of_all = [], []

    def enumerate_(ranks):
        of_all.append([tuple(group) for group in ranks])
        return "own", ranks

    monkeypatch.setattr(groups.dist, "new_group", lambda ranks, **_: own.append(tuple(ranks)) or "own")
    monkeypatch.setattr(groups.dist, "new_subgroups_by_enumeration", enumerate_)
    return own, of_all


def test_ten_thousand_data_parallel_ranks_ask_for_two_groups(asked):
    own, of_all = asked
    started = time.process_time()
    groups.ProcessGroups(Topology(7, 10_240))
    assert time.process_time() - started < 1, "the ranks of each rank's group were listed"
    assert of_all == [[tuple(range(10_240))]]
    assert own == [(7,)]


def test_every_rank_asks_for_all_groups_in_one_order(asked):
    _, of_all = asked
    places = [Topology(rank, dp=2, tp=2, pp=2) for rank in range(8)]
    for place in places:
        assert groups.ProcessGroups(place).vocabulary == "own"
    data = [(0, 2), (1, 3), (4, 6), (5, 7)]
    tensor = [(0, 1), (2, 3), (4, 5), (6, 7)]
    vocabulary = [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert of_all == [data, tensor, vocabulary] * 8
