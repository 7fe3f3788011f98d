"""What a branch takes from its parent, and what is refused; `tests/resume/test_branch.py` trains branches."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.inspection.family import family_tree
from toolkit.model.presets import MODEL_PRESETS
from toolkit.run import load_run
from toolkit.run.branching import make_branch
from toolkit.run.comparison import Course, parting
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run
from toolkit.run.step_plan import StepPlan
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.distributed import run_distributed

_MLM = '[[schedule]]\nobjective = "mlm"\nsteps = 6\n'


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 + 4 steps, peak 1e-2, one step of warm-up and two of decay, with the checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("trunk")
    copies = f"checkpoint.copy_to={folder / 'copies'}"
    case = RunCase(str(write_run(folder, phase_steps=4)), "zero0", ("checkpoint.every=4", "checkpoint.keep=9", copies))
    run_distributed([case], world_size=1)
    return folder / "run"


def _branch(trunk: Path, folder: Path, tail: str, *, step: int = 4, name: str = "branch", **options: Any) -> Path:
    file = folder / "tail.toml"
    file.write_text(tail, encoding="utf-8")
    return make_branch(trunk, step=step, tail=file, output=folder / name, **options)[0]


def _rates(run_file: Path) -> list[float]:
    plan = StepPlan(load_run(str(run_file)))
    return [plan.learning_rate(step) for step in range(plan.first_step, plan.schedule.total_steps)]


def test_what_the_tail_leaves_out_is_the_parents(trunk: Path, tmp_path: Path) -> None:
    text = _MLM + '[objectives.mlm]\nmask_ratio = 0.25\n[lr]\npeak = 3e-3\n[branch]\nlr = "rewarm"\n'
    settings = load_run(str(_branch(trunk, tmp_path, text, overrides=["checkpoint.keep=1"])))
    assert (settings.lr.peak, settings.lr.warmup_steps, settings.lr.decay_steps) == (1e-2, 1, 2)
    # The trunk's rate was made for 8 steps, of which 4 are made; the peak is the tail's own.
    assert (settings.schedule[0].lr_planned_to, settings.schedule[1].lr_peak) == (8, 3e-3)
    assert StepPlan(settings).describe_learning_rate().startswith("to step 4 of 8: peak 0.01, ")
    assert settings.objectives["mlm"].plain()["mask_ratio"] == 0.25
    assert (settings.run.seed, settings.checkpoint.every, settings.checkpoint.keep) == (7, 4, 1)
    assert load_run(str(trunk / "run.toml")).checkpoint.copy_to == str(trunk.parent / "copies")
    assert settings.checkpoint.copy_to is None
    assert settings.fork is not None
    assert (settings.fork.step, StepPlan(settings).position(4)) == (4, 4 * 8)
    assert [(phase.objective, phase.steps) for phase in settings.schedule] == [("clm", 4), ("mlm", 6)]


@pytest.mark.parametrize(
    ("tail", "rates"),
    [
        # One run of 10 steps: constant up to the last two, which have peak x 2/2 and peak x 1/2.
        (_MLM, [1e-2, 1e-2, 1e-2, 1e-2, 1e-2, 5e-3]),
        # Six steps of their own: two of warm-up, two of decay.
        (_MLM + '[lr]\nwarmup_steps = 2\n[branch]\nlr = "rewarm"\n', [5e-3, 1e-2, 1e-2, 1e-2, 1e-2, 5e-3]),
        # Four of the six, not five of the trunk's eight, of which four are made.
        (
            _MLM + '[lr]\nwarmup_steps = 0\ndecay_fraction = 0.67\n[branch]\nlr = "rewarm"\n',
            [1e-2, 1e-2, 1e-2, 7.5e-3, 5e-3, 2.5e-3],
        ),
        (_MLM + "[lr]\ndecay_steps = 5\n", [1e-2, 1e-2, 8e-3, 6e-3, 4e-3, 2e-3]),
        (_MLM + '[lr]\nkind = "constant"\n', [1e-2] * 6),
    ],
)
def test_the_learning_rate_goes_on_or_warms_up_again(
    trunk: Path, tmp_path: Path, tail: str, rates: list[float]
) -> None:
    assert _rates(_branch(trunk, tmp_path, tail)) == pytest.approx(rates, rel=1e-12)


def test_a_tail_may_name_the_trunks_preset(trunk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_run(str(trunk / "run.toml")).model
    monkeypatch.setitem(MODEL_PRESETS, "trunk", model.model_copy(update={"vocab_size": None}))
    assert load_run(str(_branch(trunk, tmp_path, _MLM + '[model]\npreset = "trunk"\n'))).model == model
    with pytest.raises(SettingsError, match=r"model\.vocab_size: there 97, here 98"):
        _branch(trunk, tmp_path, _MLM + '[model]\npreset = "trunk"\nvocab_size = 98\n', name="other")


def test_a_scheduler_makes_the_phases_of_a_tail(trunk: Path, tmp_path: Path) -> None:
    tail = _MLM + '[[schedule]]\nobjective = "clm"\nsteps = 2\n[scheduler]\nkind = "alternate"\ncycles = 2\n'
    settings = load_run(str(_branch(trunk, tmp_path, tail)))
    phases = StepPlan(settings).schedule.phases
    assert [(phase.objective, phase.start, phase.stop) for phase in phases] == [
        ("clm", 0, 4),
        ("mlm", 4, 10),
        ("clm", 10, 12),
        ("mlm", 12, 18),
        ("clm", 18, 20),
    ]


def test_a_branch_of_a_rewarmed_branch_keeps_that_warm_up(trunk: Path, tmp_path: Path) -> None:
    """Steps 4 to 16 are one stretch of 12: with 3 steps of warm-up and 4 of decay, step 8 is in its middle."""
    text = _MLM + '[lr]\nwarmup_steps = 3\ndecay_steps = 0\n[branch]\nlr = "rewarm"\n'
    first = _branch(trunk, tmp_path, text, name="first")
    run_distributed([RunCase(str(first), "zero0", ("checkpoint.every=4",))], world_size=1)
    second = _branch(first.parent, tmp_path, _MLM.replace("6", "8") + "[lr]\ndecay_steps = 4\n", step=8, name="second")
    plan = StepPlan(load_run(str(second)))
    assert (plan.first_step, plan.schedule.total_steps) == (8, 16)
    assert _rates(second) == pytest.approx([1e-2, 1e-2, 1e-2, 1e-2, 1e-2, 7.5e-3, 5e-3, 2.5e-3])
    written = tomllib.loads(second.read_text())
    assert [(phase["objective"], phase["steps"], phase["lr"]) for phase in written["schedule"]] == [
        ("clm", 4, "keep"),
        ("mlm", 4, "rewarm"),
        ("mlm", 8, "keep"),
    ]
    tree = family_tree(second.parent)
    assert tree is not None
    # Each run by the folder that its run file lies in: the parent, its branch, and the branch of that.
    assert str(tree.label).startswith("Family\n")
    assert str(tree.label).endswith("run (saved up to step 8)")
    (child,) = [node for node in tree.children if "first" in str(node.label)]
    assert str(child.label).endswith("first (saved up to step 10), branched at step 4")
    (grandchild,) = child.children
    assert str(grandchild.label).endswith("second (no checkpoint yet), branched at step 8 <- this run")
    # The same as a fraction of that stretch.
    tail = _MLM.replace("6", "8") + "[lr]\ndecay_fraction = 0.33\n"
    assert _rates(_branch(first.parent, tmp_path, tail, step=8, name="third")) == _rates(second)


def test_a_run_file_above_a_model_is_no_relative(tmp_path: Path) -> None:
    """`models/base` beside a run file that somebody wrote; and a run file whose branch point is not said."""
    files = {
        "run.toml": '[init]\nfrom = "models/base"\n',
        "runs/one/run.toml": f'[init]\nfrom = "{tmp_path / "models" / "base"}"\n',
        "runs/two/run.toml": f'[fork]\nfrom = "{tmp_path / "runs" / "one" / "checkpoints" / "step-00000004"}"\n',
    }
    (tmp_path / "models" / "base").mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    tree = family_tree(tmp_path / "runs" / "one")
    assert tree is not None
    assert str(tree.label).endswith("one (no checkpoint yet) <- this run")
    assert [str(child.label).endswith("two (no checkpoint yet), branched") for child in tree.children] == [True]


def test_a_branch_goes_on_in_the_warm_up_of_its_parents_phase(tmp_path: Path) -> None:
    """The phase of steps 4 to 8 has a stretch and a peak of its own; kept, both go on to step 10."""
    phases = 'schedule=[{objective="clm", steps=4}, {objective="mlm", steps=6, lr="rewarm", lr_peak=4e-3}]'
    case = RunCase(str(write_run(tmp_path, phase_steps=4)), "zero0", ("checkpoint.keep_every=4", phases))
    run_distributed([case], world_size=1)
    kept = _branch(tmp_path / "run", tmp_path, _MLM.replace("6", "2"), step=8, name="kept")
    # Steps 4 to 10 are one stretch of 6: one of warm-up, two of decay.
    assert _rates(kept) == pytest.approx([4e-3, 2e-3])
    assert StepPlan(load_run(str(kept))).stretches[-1].start == 4
    # Before that phase, the run's own stretch goes on.
    with pytest.raises(
        SettingsError, match=r"part at step 2, before 4:\n  lr: from 0.01 to 0 x that over steps 3 to 4"
    ):
        _branch(tmp_path / "run", tmp_path, _MLM.replace("6", "2"), step=4, name="early")
    again = _MLM.replace("6", "2") + '[lr]\nwarmup_steps = 0\ndecay_steps = 1\n[branch]\nlr = "rewarm"\n'
    assert _rates(_branch(tmp_path / "run", tmp_path, again, step=4, name="early")) == pytest.approx([1e-2, 1e-2])


def test_a_branch_keeps_the_angles_of_its_parents_phase(tmp_path: Path) -> None:
    phases = 'schedule=[{objective="clm", steps=2}, {objective="mlm", steps=2, model={rope_theta=5e4}}]'
    every = ("checkpoint.every=2", "train.steps=4", "lr.decay_steps=0", phases)
    case = RunCase(str(write_run(tmp_path, phase_steps=4)), "zero0", every)
    run_distributed([case], world_size=1)
    for step, theta in ((2, 10_000.0), (4, 50_000.0)):
        branch = _branch(tmp_path / "run", tmp_path, _MLM, step=step, name=f"at-{step}")
        settings = load_run(str(branch))
        assert (settings.model.rope_theta, StepPlan(settings).model_at(step).rope_theta) == (10_000.0, theta)
    back = _branch(tmp_path / "run", tmp_path, _MLM + "[model]\nrope_theta = 1e4\n", step=4, name="back")
    assert StepPlan(load_run(str(back))).model_at(4).rope_theta == 10_000.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[run]\nseed = 8\n", r"step 0, before 4:\n  run\.seed: 7 there, 8 here"),
        ("[train]\nweight_decay = 0.5\n", r"step 0, before 4:\n  train\.weight_decay: 0\.1 there, 0\.5 here"),
        ("[lr]\npeak = 1e-3\n", r"step 0, before 4:\n  lr: 0\.01 up to step 6 there, 0\.001 up to step 8 here"),
        ('[lr]\nkind = "cosine"\n', r"step 1, before 4:\n  lr: "),
    ],
    ids=["seed", "weight decay", "peak", "cosine"],
)
def test_what_would_have_made_the_first_steps_otherwise_is_refused(
    trunk: Path, tmp_path: Path, text: str, reason: str
) -> None:
    """With the way out: another run that begins with these weights and moments."""
    with pytest.raises(SettingsError, match=rf"{reason}(.|\n)*init\.from = .*step-00000004., init\.optimizer = .keep"):
        _branch(trunk, tmp_path, _MLM + text)


def test_a_branch_is_known_by_how_its_first_steps_were_made(trunk: Path, tmp_path: Path) -> None:
    """Its tail's peak is not taken for that of the steps before, by a fork or a study that looks for a beginning."""
    tail = _MLM + '[lr]\npeak = 1e-3\n[branch]\nlr = "rewarm"\n'
    branch = Course(declare_run(str(_branch(trunk, tmp_path, tail))))
    whole = [Course(declare_run(str(trunk / "run.toml"), [f"lr.peak={peak}"])) for peak in (1e-2, 1e-3)]
    assert [parting(branch, course).step for course in whole] == [4, 0]


def test_a_tails_peak_is_that_of_its_phases_that_warm_up(trunk: Path, tmp_path: Path) -> None:
    tail = _MLM + _MLM.replace("6", '20\nlr = "rewarm"') + "[lr]\npeak = 1e-3\n"
    plan = StepPlan(load_run(str(_branch(trunk, tmp_path, tail))))
    assert [(stretch.start, stretch.settings.peak) for stretch in plan.stretches] == [(0, 1e-2), (10, 1e-3)]


@pytest.mark.parametrize("other", ["validation", "copy"])
def test_a_branch_is_left_behind_a_switch_that_its_parent_was_to_make(tmp_path: Path, other: str) -> None:
    """To other data, or to the same at another place. A warm-up that is left out is a share of its own stretch."""
    run_file = write_run(tmp_path, phase_steps=4)
    shutil.copytree(tmp_path / "corpus", tmp_path / "copy")
    second = f'{{objective="mlm", steps=4, data={{train="{tmp_path / other}"}}}}'
    given = (f'schedule=[{{objective="clm", steps=4}}, {second}]', "lr={peak=1e-2}", "checkpoint.keep_every=2")
    run_distributed([RunCase(str(run_file), "zero0", given)], world_size=1)
    tail = _MLM + _MLM.replace("6", '40\nlr = "rewarm"')
    behind = _branch(tmp_path / "run", tmp_path, tail, step=6, name="behind")
    plan = StepPlan(load_run(str(behind)))
    assert [stretch.settings.ramps(stretch.num_steps)[0] for stretch in plan.stretches] == [0, 2]
    first = _branch(tmp_path / "run", tmp_path, _MLM, name="first", overrides=["checkpoint.every=2"])
    run_distributed([RunCase(str(first))], world_size=1)
    plan = StepPlan(load_run(str(_branch(first.parent, tmp_path, _MLM, step=6, name="second"))))
    assert [plan.position(step) for step in (4, 6, 7)] == [32, 48, 56]


def test_rows_of_another_length_begin_with_the_first(trunk: Path, tmp_path: Path) -> None:
    assert StepPlan(load_run(str(_branch(trunk, tmp_path, _MLM + "[data]\nsequence_length = 32\n")))).position(4) == 0


def test_rows_go_on_with_another_number_of_them_a_step(trunk: Path, tmp_path: Path) -> None:
    settings = load_run(str(_branch(trunk, tmp_path, _MLM + "[train]\nglobal_batch_rows = 16\n")))
    plan = StepPlan(settings)
    assert [plan.position(step) for step in (4, 5, 9)] == [32, 48, 112]


@pytest.mark.parametrize("is_last", [True, False], ids=["16 rows", "back to 8"])
def test_rows_go_on_where_a_phase_names_the_corpus_of_the_run_again(tmp_path: Path, is_last: bool) -> None:
    """Four steps of 8 rows and three of 16 on the same corpus, which a checkpoint names once."""
    run_file = str(write_run(tmp_path, phase_steps=4))
    again = f'{{objective="mlm", steps=4, data={{train="{tmp_path / "corpus"}"}}, global_batch_rows=16}}'
    first = '{objective="clm", steps=4}'
    trunk = f"schedule=[{first}, {again}]"
    run_distributed([RunCase(run_file, "zero0", ("checkpoint.keep_every=7", "lr.decay_steps=0", trunk))], world_size=1)
    tail = again.replace("steps=4", "steps=1") if is_last else first
    plan = StepPlan(load_run(str(_branch(tmp_path / "run", tmp_path, f"schedule = [{tail}]", step=7))))
    in_one = trunk if is_last else f"schedule=[{first}, {again.replace('steps=4', 'steps=3')}, {first}]"
    whole = StepPlan(load_run(run_file, [in_one]))
    assert plan.position(7) == 4 * 8 + 3 * 16
    assert [plan.position(step) for step in range(7, plan.schedule.total_steps)] == [
        whole.position(step) for step in range(7, whole.schedule.total_steps)
    ]


@pytest.mark.parametrize("tail", ["folder", "blend", "weights"])
def test_weights_by_temperature_are_of_blends_without_weights(tmp_path: Path, tail: str) -> None:
    paths = [f'path = "{tmp_path / name}"' for name in ("corpus", "validation")]
    blend = f"data.train=[{{{paths[0]}}}, {{{paths[1]}}}]"
    overrides = (blend, "data.weights.temperature=0.7", "checkpoint.every=4")
    run_distributed([RunCase(str(write_run(tmp_path, phase_steps=4)), "zero0", overrides)], world_size=1)
    train, temperature = {
        "folder": (f'"{tmp_path / "corpus"}"', None),
        "blend": (f"[{{{paths[1]}}}, {{{paths[0]}}}]", 0.7),
        "weights": (f"[{{{paths[1]}, weight = 2}}, {{{paths[0]}, weight = 1}}]", None),
    }[tail]
    plan = StepPlan(load_run(str(_branch(tmp_path / "run", tmp_path, f"{_MLM}[data]\ntrain = {train}\n"))))
    found = [None if data.weights is None else data.weights.temperature for data in plan.data]
    assert found == [0.7, temperature]


def test_a_later_phase_goes_on_in_the_trunks_data_behind_one_on_new_data(trunk: Path, tmp_path: Path) -> None:
    """Step 4 has read 32 rows of the trunk's corpus; two steps on another one, and then two on the trunk's."""
    new = f'{{objective="mlm", steps=2, data={{train="{trunk.parent / "validation"}"}}}}'
    tail = f'schedule = [{new}, {{objective="mlm", steps=2}}]'
    plan = StepPlan(load_run(str(_branch(trunk, tmp_path, tail))))
    assert [plan.position(step) for step in range(4, 8)] == [0, 8, 32, 40]


@pytest.mark.parametrize("validation", ["", 'validation = "{}/corpus"\n'], ids=["other rows", "validated on too"])
def test_rows_go_on_where_a_corpus_has_moved(trunk: Path, tmp_path: Path, validation: str) -> None:
    shutil.copytree(trunk.parent / "corpus", tmp_path / "moved")
    data = f'[data]\ntrain = "{tmp_path / "moved"}"\n' + validation.format(trunk.parent)
    settings = load_run(str(_branch(trunk, tmp_path, _MLM + data)))
    assert (settings.data.train, StepPlan(settings).position(5)) == (str(tmp_path / "moved"), 40)


def test_an_objective_that_the_tail_has_otherwise_gets_another_name(trunk: Path, tmp_path: Path) -> None:
    tail = _MLM + '[objectives.mlm]\nmask_ratio = 0.2\n[branch]\nlr = "rewarm"\n'
    settings = load_run(str(_branch(trunk, tmp_path, tail, step=8)))
    assert [phase.objective for phase in settings.schedule] == ["clm", "mlm-to-8", "mlm"]
    assert [settings.objectives[name].plain()["mask_ratio"] for name in ("mlm-to-8", "mlm")] == [0.4, 0.2]


def test_a_branch_inside_a_batch_warm_up_keeps_what_the_phase_was_made_for(tmp_path: Path) -> None:
    """Steps of 2, 2, 4 and 6 rows, then of 8; the branch leaves behind the third."""
    phases = 'schedule=[{objective="clm", steps=6, batch_warmup_rows=2, batch_warmup_tokens=768}]'
    rates = ("lr.warmup_steps=1", "lr.decay_steps=0", "checkpoint.keep_at=[3]")
    case = RunCase(str(write_run(tmp_path, phase_steps=4)), "zero0", (phases, *rates))
    run_distributed([case], world_size=1)
    settings = load_run(str(_branch(tmp_path / "run", tmp_path, _MLM, step=3)))
    assert [(phase.steps, phase.planned_steps) for phase in settings.schedule] == [(3, 6), (6, None)]
    assert [StepPlan(settings).position(step) for step in (1, 2, 3, 4)] == [2, 4, 8, 16]


def test_another_validation_corpus_changes_no_row(trunk: Path, tmp_path: Path) -> None:
    text = _MLM + f'[data]\nvalidation = "{trunk.parent / "corpus"}"\n'
    settings = load_run(str(_branch(trunk, tmp_path, text)))
    assert StepPlan(settings).position(4) == 32


@pytest.mark.parametrize(
    ("tail", "options", "message"),
    [
        (_MLM, {"step": 5}, r"step 5 of .*run is not a kept checkpoint; the nearest kept ones are 4, 8\.\nGive one"),
        (_MLM, {"step": 9}, r"the nearest kept ones are 8\.\n"),
        ("[lr]\npeak = 1e-3\n", {}, r"a tail needs \[\[schedule\]\]"),
        (_MLM + '[branch]\nlr = "again"\n', {}, r"branch\.lr: expected 'keep' or 'rewarm'"),
        (_MLM + "[branch]\nstep = 4\n", {}, r"unknown key 'branch\.step'"),
        (_MLM + "[model]\nhidden_size = 64\n", {}, r"differs from \[model\]:\n  model\.hidden_size: there 32, here 64"),
        (_MLM + '[run]\ndir = "elsewhere"\n', {}, r"run\.dir='elsewhere', and --output names"),
        (_MLM + '[init]\nfrom = "x"\n', {}, r"Leave \[init\] out"),
        (_MLM.replace("steps", "fraction"), {}, "fraction"),
        (_MLM + "[lr]\ndecay_steps = 11\n", {}, r"longer than the run \(10 steps\)"),
        (_MLM + '[lr]\ndecay_fraction = 2\n[branch]\nlr = "rewarm"\n', {}, r"lr\.decay_fraction: .*at most 1, got 2"),
        (
            _MLM + '[lr]\ndecay_fraction = 0.5\nkind = "constant"\n[branch]\nlr = "rewarm"\n',
            {},
            r'lr\.decay_fraction=0\.5 is of kind "wsd"',
        ),
        ("lr = 3\n" + _MLM, {}, r"invalid value for lr: expected a table"),
    ],
)
def test_a_tail_that_does_not_fit_is_refused(
    trunk: Path, tmp_path: Path, tail: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        _branch(trunk, tmp_path, tail, **options)
    assert not (tmp_path / "branch").exists()


def test_another_vocabulary_is_refused(trunk: Path, tmp_path: Path) -> None:
    documents = random_documents(40, vocabulary_size=80, max_length=90, first_id=3, seed=1)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=80, eos=0, pad=1, mask=2)
    text = _MLM + f'[data]\ntrain = "{other}"\nvalidation = "{other}"\n'
    with pytest.raises(SettingsError, match=r"schedule\.1\.data\.train .* and data\.train .* different tokenizers"):
        _branch(trunk, tmp_path, text)


def test_a_folder_that_holds_a_run_is_left_alone(trunk: Path, tmp_path: Path) -> None:
    written = _branch(trunk, tmp_path, _MLM).read_bytes()
    with pytest.raises(SettingsError, match=r"holds a run already(.|\n)*to go on with it: toolkit train"):
        _branch(trunk, tmp_path, _MLM.replace("6", "7"))
    assert (tmp_path / "branch" / "run.toml").read_bytes() == written
    with pytest.raises(SettingsError, match=r"is the run .*, or inside it"):
        make_branch(trunk, step=4, tail=tmp_path / "tail.toml", output=trunk)
    with pytest.raises(SettingsError, match=r"is the run .*, or inside it"):
        make_branch(trunk, step=4, tail=tmp_path / "tail.toml", output=trunk / "mlm")
    with pytest.raises(SettingsError, match="has no checkpoint"):
        make_branch(tmp_path, step=4, tail=tmp_path / "tail.toml", output=tmp_path / "x")


def test_a_parent_that_is_gone_is_named(trunk: Path, tmp_path: Path) -> None:
    run_file = _branch(trunk, tmp_path, _MLM)
    text = run_file.read_text(encoding="utf-8").replace("step-00000004", "step-00000005")
    run_file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"fork\.from=.*step-00000005, which a fork needs until it has a"):
        resolve_run(declare_run(str(run_file)), ds_config="zero0", num_ranks=1)


def test_a_checkpoint_of_another_step_is_no_branch_point(trunk: Path, tmp_path: Path) -> None:
    run_file = _branch(trunk, tmp_path, _MLM)
    text = run_file.read_text(encoding="utf-8").replace("step-00000004", "step-00000008")
    run_file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"step-00000008 is of step 8, and fork\.step=4\.\nMake them equal"):
        resolve_run(declare_run(str(run_file)), ds_config="zero0", num_ranks=1)
