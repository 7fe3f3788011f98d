"""What a family of another package has to be."""

import sys

import pytest

from tests.support.packages import lay_down_entry_points
from toolkit.core.errors import UserError
from toolkit.finetuning import get_task
from toolkit.finetuning.tc.task import TokenClassification


@pytest.mark.parametrize(
    ("main", "other", "named"),
    [
        ("mse", "r2", "mse"),
        ("char_error", "r2", "char_error"),
        ("f1", "loss@10", "loss@10"),
        ("neg_mse", "terror", None),
        ("f1_macro", "spearman", None),
    ],
)
def test_a_metric_of_which_less_is_better_is_refused(monkeypatch, tmp_path, main, other, named):
    (tmp_path / "elsewhere.py").write_text(
        "from toolkit.finetuning.tc.task import TokenClassification\n"
        "class Elsewhere(TokenClassification):\n"
        f"    name, metrics, other_metrics = 'from_elsewhere', {{'standard': {main!r}}}, {{'standard': ({other!r},)}}\n"
    )
    lay_down_entry_points(tmp_path, "elsewhere", {"toolkit.tasks": {"from_elsewhere": "elsewhere:Elsewhere"}})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    if named is None:
        task = get_task("from_elsewhere")
        assert task(task.Settings()).metric_names == (main, other)
        return
    with pytest.raises(UserError, match=f"of the metric '{named}' a lower value seems to be better"):
        get_task("from_elsewhere")


def test_a_family_that_lacks_methods_is_refused(monkeypatch, tmp_path):
    (tmp_path / "half.py").write_text("from toolkit.finetuning import Task\nclass Half(Task):\n    name = 'half'\n")
    lay_down_entry_points(tmp_path, "half", {"toolkit.tasks": {"half": "half:Half"}})
    monkeypatch.syspath_prepend(tmp_path)
    lacks = "it lacks decode, encode, loss, network, read, save, score, metrics"
    with pytest.raises(UserError, match=rf"'half' from package half 1\.5 .*breaks the contract: {lacks}\. Correct"):
        get_task("half")


def test_a_protocol_that_a_family_has_no_metric_for_is_refused():
    """Else it would be missed once the training has ended."""

    class Standard(TokenClassification):
        name, metrics = "mine", {"standard": "f1"}

    with pytest.raises(UserError, match=r"the task mine has no protocol 'paper'\. Choose one of: standard\."):
        Standard(Standard.Settings(protocol="paper"))


@pytest.mark.parametrize(
    ("task", "options", "names"),
    [
        ("sc", {}, "accuracy f1_macro mcc"),
        ("sc", {"label_type": "set"}, "f1_micro f1_macro exact_match"),
        ("sc", {"protocol": "paper"}, "paper_accuracy"),
        ("tc", {}, "f1 precision recall"),
        ("qa", {}, "f1 exact_match"),
        ("qa", {"protocol": "paper"}, "paper_f1"),
        ("ir", {}, "ndcg@10 mrr@10 recall@100"),
    ],
)
def test_the_main_metric_is_one_of_the_familys_scores(task, options, names):
    family = get_task(task)
    first, *_, last = names.split() * 2
    assert family(family.Settings(**options)).metric == first
    assert family(family.Settings(**options, metric=last)).metric == last
    message = f"unknown metric 'none' for the task {task}. Choose one of: {', '.join(names.split())}"
    with pytest.raises(UserError, match=message):
        family(family.Settings(**options, metric="none"))
