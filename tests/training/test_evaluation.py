"""Validation losses: by objective over all corpora, and by corpus where they have names."""

import contextlib
import math
from types import SimpleNamespace

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CorpusError, NonFiniteError, SettingsError
from toolkit.core.types import AttentionKind
from toolkit.inspection.runs import run_views
from toolkit.run import RunFolder
from toolkit.run.load import declare_run, load_run, read_resolved
from toolkit.run.metrics import scalars
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.training.evaluation import Evaluator
from toolkit.training.rank_errors import RankErrors

_CLM = SimpleNamespace(attention=AttentionKind.CAUSAL)


class _Batches:
    """Micro-batches that are their loss sums, and what their targets count."""

    def __init__(self, *built):
        self._built, self.num_batches = built, len(built)

    def of(self, objective):
        return iter(self._built)


def _losses(batches):
    engine = SimpleNamespace(loss_sum=lambda micro_batches: tuple(map(sum, zip(*micro_batches, strict=True))))
    ranks = SimpleNamespace(together=contextlib.nullcontext)
    return Evaluator(engine, batches, {"clm": _CLM}, every=None).losses(7, RankErrors(ranks))


def test_the_mean_over_all_counts_every_target_once():
    batches = {"web": _Batches((6.0, 2), (3.0, 1)), "code": _Batches((5.0, 1)), "empty": _Batches((0.0, 0))}
    assert _losses(batches) == ({"clm": 3.5}, {"web": {"clm": 3.0}, "code": {"clm": 5.0}, "empty": {}})
    assert _losses({"": _Batches((6.0, 2), (3.0, 1))}) == ({"clm": 3.0}, {})


def test_a_loss_that_is_not_finite_names_its_corpus():
    with pytest.raises(NonFiniteError, match="step 7: the validation loss of clm on code is not finite"):
        _losses({"web": _Batches((6.0, 2)), "code": _Batches((math.nan, 1))})


@pytest.fixture
def two(tmp_path):
    """A run file and `--set` that name two corpora; the first is the one that the file names alone."""
    documents = random_documents(11, vocabulary_size=97, max_length=40, first_id=40, seed=5)
    code = write_token_corpus(tmp_path / "code", documents, vocabulary_size=97, eos=0, pad=1, mask=2)
    return str(write_run(tmp_path)), f"data.validation={{web='{tmp_path / 'validation'}', code='{code}'}}"


def test_each_named_corpus_has_the_losses_that_it_has_alone(two, tmp_path):
    run_file, named = two
    overrides = ("train.steps=2", "schedule.0.steps=1", "schedule.1.steps=1", "lr.warmup_steps=1", "lr.decay_steps=1")
    _, alone = RunCase(run_file, overrides=(*overrides, f"run.dir={tmp_path / 'alone'}"))()
    _, lines = RunCase(run_file, overrides=(*overrides, named))()
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line, expected in zip(lines, alone, strict=True):
        losses, single = line["eval_loss"], expected["eval_loss"]
        assert (list(losses), losses["web"]) == (["clm", "mlm", "web", "code"], single)
        assert line.get("loss") == expected.get("loss")
        for name in ("clm", "mlm"):
            low, high = sorted((losses["web"][name], losses["code"][name]))
            assert low < losses[name] < high
            assert scalars(line)[f"validation/{name}"] == losses[name]
            assert scalars(line)[f"validation/code/{name}"] == losses["code"][name]
    folder = RunFolder(tmp_path / "run")
    assert read_resolved(folder.settings_file).settings.data == load_run(run_file, [named]).data
    manifest = folder.newest_manifest()
    assert manifest.losses.keys() == {"validation/clm", "validation/mlm", "train/clm", "train/mlm"}
    assert manifest.corpora.keys() == {"data.train", "data.validation.web", "data.validation.code"}
    table = next(view for view in run_views(folder) if view.title == "Validation loss")
    cells = [list(column.cells) for column in table.columns]
    assert [str(column.header) for column in table.columns] == ["step", "after", "corpus", "clm", "mlm"]
    assert cells[2] == ["(all)", "web", "code"] * 3
    assert cells[3][-1] == f"{lines[-1]['eval_loss']['code']['clm']:.4f}"


def test_validation_may_change_on_resume(two, tmp_path):
    run_file, named = two
    overrides = ("schedule.0.steps=1", "schedule.1.steps=1", "lr.warmup_steps=1", "lr.decay_steps=1")
    _, alone = RunCase(run_file, overrides=(*overrides, f"run.dir={tmp_path / 'alone'}"))()
    RunCase(run_file, overrides=overrides, until=1)()
    _, lines = RunCase(run_file, overrides=(*overrides, named))()
    assert [list(line["eval_loss"]) for line in lines] == [["clm", "mlm"]] * 2 + [["clm", "mlm", "web", "code"]]
    assert lines[-1]["eval_loss"]["web"] == alone[-1]["eval_loss"]
    assert [line.get("loss") for line in lines] == [line.get("loss") for line in alone]


def test_a_named_corpus_that_does_not_fit_is_named(two, tmp_path):
    run_file, named = two
    with pytest.raises(CorpusError, match="nowhere"):
        RunCase(run_file, overrides=(named.replace("code'", "nowhere'"),))()
    other = write_token_corpus(tmp_path / "other", [], vocabulary_size=50, eos=0, pad=1, mask=2)
    with pytest.raises(SettingsError, match=r"data\.validation\.b \(.*other\) were made with different tokenizers"):
        RunCase(run_file, overrides=(f"data.validation={{b='{other}'}}",))()


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ("{}", "a table needs a corpus"),
        ("{'a/b' = 'x'}", "'a/b' cannot name a corpus: use letters, digits, - and _"),
        ("{'' = 'x'}", "'' cannot name a corpus"),
        ("{web = 3}", r"invalid value for data\.validation\.web: expected a string, got 3"),
        ("3", r"invalid value for data\.validation: expected a string, got 3"),
        ("{mlm = 'x'}", r"data\.validation\.mlm: eval_loss has the losses of the objective 'mlm' under that name"),
    ],
)
def test_names_that_would_be_ambiguous_are_refused(two, validation, message):
    with pytest.raises(SettingsError, match=message):
        declare_run(two[0], [f"data.validation={validation}"])
