"""What has to be the same when a run is resumed or branched."""

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import CorpusError
from toolkit.run.identity import check_fork_corpora
from toolkit.run.load import declare_run

_PARENT = {
    "data.train.0.path": "a",
    "data.train.1.path": "b",
    "schedule.1.data.train": "c",
    "data.validation.train": "v",
}


@pytest.fixture
def branch(tmp_path):
    """Its phases: one that is past, the parent's blend, the corpus of the parent's second phase, a new corpus, and the
    blend again.
    """
    blend = 'data.train=[{path="A",weight=1},{path="B",weight=1}]'
    phases = [", data={train='C'}", ", data={train='D'}", ""]
    schedule = "".join(f', {{objective="mlm", steps=2{data}}}' for data in phases)
    table = 'fork={from="x", step=9, positions=[72, 8, 0, 72]}'
    past = '{objective="mlm", steps=9}'
    return declare_run(
        str(write_run(tmp_path)),
        [blend, table, f'schedule=[{past}, {{objective="clm", steps=20}}{schedule}]', "lr.decay_steps=4"],
    )


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({}, None),
        ({"data.validation.train": "w"}, None),
        ({"data.train.1.path": "e"}, r"others: data\.train\."),
        ({"data.train.0.path": "b", "data.train.1.path": "a"}, r"others: data\.train\."),
        ({"schedule.2.data.train": "v"}, r"others: schedule\.2\.data\.train\."),
        ({"schedule.2.data.train": "e", "data.train.0.path": "e"}, r"others: data\.train, schedule\.2\.data\.train\."),
    ],
)
def test_each_corpus_whose_rows_go_on_is_the_parents(branch, found, named):
    corpora = {**_PARENT, "schedule.2.data.train": "c", "schedule.3.data.train": "d"} | found
    if named is None:
        check_fork_corpora(branch, _PARENT, corpora)
        return
    with pytest.raises(CorpusError, match=named):
        check_fork_corpora(branch, _PARENT, corpora)
