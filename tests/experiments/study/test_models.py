"""Studies from the file to whole runs with names; what is shipped is the paper's."""

import pytest

from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.study.declaration import PRESETS, load_study
from toolkit.experiments.study.models import models_of, parse_schedule
from toolkit.experiments.study.names import axis_labels
from toolkit.experiments.study.tree import Tree
from toolkit.run.toml_files import presets_in

BASE = """
[model]
preset = "test"
[data]
train = "corpus"
sequence_length = 32
[[schedule]]
objective = "mlm"
steps = 7
[train]
steps = 7
global_batch_rows = 4
[lr]
warmup_steps = 2
decay_steps = 2
"""
SIZES = ("210m", "610m", "1b")
RATIOS = (20, 30, 40, 50)
SPLITS = {12: (3, 6, 9), 22: (5, 11, 17), 42: (10, 21, 32)}
MIXED = {f"610m-clm-{clm}k-mlm40-{total}k" for total, splits in SPLITS.items() for clm in splits}
PURE = {f"610m-{objective}-{total}k" for objective in ("clm", "mlm40") for total in (12, 22)}
OF_ONE_OBJECTIVE = {f"{size}-{objective}-42k" for size in SIZES for objective in ("clm", *(f"mlm{r}" for r in RATIOS))}
MASKS = {f"610m-clm-40k-mlm{ratio}-42k" for ratio in RATIOS}
CONTINUED = {f"610m-{start}-dec42k-mlm40-{total}k" for start in ("clm", "mlm40") for total in (44, 54, 64)}
LONG = {"610m-clm-42k", "610m-mlm40-42k"}


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(BASE)

    def write(text, head=""):
        (tmp_path / "shares.toml").write_text(f'[study]\nbase = "base.toml"\n{head}\n{text}')
        return load_study("shares.toml")

    return write


@pytest.mark.parametrize(
    ("name", "names", "alone", "shared"),
    [
        ("paper-base", OF_ONE_OBJECTIVE, 630_000, 630_000),
        ("paper-from-scratch", MIXED | PURE | LONG, 380_000, 206_000),
        ("paper-continued", CONTINUED | LONG, 408_000, 136_000),
        ("paper", OF_ONE_OBJECTIVE | MIXED | PURE | MASKS | CONTINUED, 1_418_000, 812_000),
    ],
)
def test_shipped_studies_are_the_papers(name, names, alone, shared):
    tree = Tree(models_of(load_study(name)))
    assert set(tree.leaves) == names
    assert (tree.alone, tree.shared) == (alone, shared)
    # Givers come first, and what two models share is trained by one of them.
    placed = list(tree.leaves)
    for leaf in tree.leaves.values():
        assert leaf.giver is None or placed.index(leaf.giver) < placed.index(leaf.name)
        assert leaf.giver is None or tree.leaves[leaf.giver].fork <= leaf.fork


def test_every_shipped_study_is_named_here():
    assert {"paper", "paper-base", "paper-continued", "paper-from-scratch"} <= set(presets_in(PRESETS))


def test_shares_are_of_the_steps_of_the_base_and_a_schedule_in_steps_is_not(study):
    models = models_of(study('[[models]]\naxes.schedule = ["clm 25% + mlm 75%", "clm 5"]'))
    assert [[phase.stop for phase in model.run.plan.schedule.phases] for model in models] == [[2, 7], [5]]


def test_axes_are_multiplied_out_inside_a_block_and_blocks_are_added(study):
    models = models_of(
        study(
            """
            [[models]]
            axes.schedule = ["mlm 6", "clm 3 + mlm 3"]
            axes.run.seed = [0, 1]
            [[models]]
            set.lr.peak = 1e-3
            axes.wide.yes = { model.intermediate_size = 192 }
            axes.schedule = ["clm 50% + mlm 50%"]
            set.train.steps = 8
            """,
            head='names = "{size}-clm-{clm_share:.2f}-seed-{seed}-of-{budget_steps}"',
        )
    )
    assert [model.name for model in models] == [
        "test-clm-0.00-seed-0-of-6",
        "test-clm-0.00-seed-1-of-6",
        "test-clm-0.50-seed-0-of-6",
        "test-clm-0.50-seed-1-of-6",
        "test-clm-0.50-seed-0-of-8",
    ]
    wide = models[-1]
    assert wide.run.settings.model.intermediate_size == 192
    assert wide.run.settings.lr.peak == 1e-3
    assert wide.labels["wide"] == "yes"
    assert wide.run.settings.run.dir == f"studies/shares/runs/{wide.name}"
    # The base's own length went with its schedule; other keys of its table did not.
    assert models[0].run.settings.train.steps is None
    assert models[0].run.settings.train.global_batch_rows == 4


def test_a_model_behind_another_one_is_one_run_whose_rate_rises_again(study):
    models = models_of(
        study(
            """
            [[models]]
            from = ["test-clm-6"]
            axes.schedule = ["mlm 3", "mlm 5"]
            rewarm = { peak = 1e-4, warmup_steps = 0, decay_steps = 2, optimizer = "reset" }
            [[models]]
            axes.schedule = ["clm 6"]
            """
        )
    )
    assert [model.name for model in models] == ["test-clm-6", "test-clm-dec6-mlm40-9", "test-clm-dec6-mlm40-11"]
    run = models[1].run
    assert [(phase.objective, phase.start, phase.stop) for phase in run.plan.schedule.phases] == [
        ("clm", 0, 6),
        ("mlm", 6, 9),
    ]
    assert [run.plan.learning_rate(step) for step in (5, 6, 8)] == [2.5e-4, 1e-4, 5e-5]
    assert run.plan.resets_optimizer(6)
    tree = Tree(models)
    assert {leaf.name: (leaf.giver, leaf.fork) for leaf in tree.leaves.values()} == {
        "test-clm-6": (None, 0),
        "test-clm-dec6-mlm40-11": ("test-clm-6", 6),
        "test-clm-dec6-mlm40-9": ("test-clm-dec6-mlm40-11", 7),
    }


def test_a_budget_of_tokens_and_a_run_that_exists(study, tmp_path):
    assert parse_schedule("clm 5B tokens + mlm 1_500") == [
        {"objective": "clm", "tokens": 5_000_000_000},
        {"objective": "mlm", "steps": 1500},
    ]
    assert [parse_schedule(f"mlm {length}")[0]["steps"] for length in ("12.5k", "2.01k")] == [12_500, 2010]
    assert parse_schedule("clm 25%+mlm 75 %")[1] == {"objective": "mlm", "fraction": 0.75}


def test_nothing_is_shared_where_the_warm_up_is_a_share_of_the_run(study, tmp_path):
    two = study('[[models]]\naxes.schedule = ["clm 40", "clm 80"]')
    assert Tree(models_of(two)).why_nothing_is_shared() == ""
    (tmp_path / "base.toml").write_text(BASE.partition("[lr]")[0])
    tree = Tree(models_of(two))
    assert tree.shared == tree.alone == 120
    assert "lr.warmup_steps is not set" in tree.why_nothing_is_shared()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["models is missing. A study needs at least one [[models]]"]),
        (
            "[[models]]\naxes.checkpoint.every = [1, 2]",
            ["axes.checkpoint.every: a run may be resumed with", "in [set]"],
        ),
        ("[[models]]\naxes.train.on_spike = ['tell', 'skip']", ["axes.train.on_spike: a run may be resumed with"]),
        ("[[models]]\naxes.data.validation = ['a']", ["axes.data.validation: a run may be resumed"]),
        ("[[models]]\naxes.lr.peak = 1e-3", ["axes.lr.peak: expected a list of values, got 0.001"]),
        (
            "[[models]]\naxes.modle.preset = ['test']",
            ["axes.modle", "expected a table of a run file", "Did you mean 'model'?"],
        ),
        ("[[models]]\naxes.schedule = ['clm']", ["schedule \"clm\": 'clm' is not an objective and a length"]),
        ("[[models]]\naxes.schedule = ['clm 1.5']", ["'clm 1.5' has 1.5 steps. Give a whole number."]),
        (
            "[[models]]\naxes.schedule = ['clm 6']\n[[models]]\naxes.schedule = ['mlm 6', 'clm 6']",
            ["block 2, schedule 'clm 6': the name test-clm-6 is that of block 1, schedule 'clm 6', too. Take one out"],
        ),
        (
            "[[models]]\naxes.schedule = ['clm 6']\naxes.lr.peak = [1e-3, -1]\n[[models]]\nset.model.heads = 2",
            ["block 1, schedule 'clm 6', lr.peak -1: invalid value for lr.peak", "block 2: unknown key 'model.heads'"],
        ),
        (
            "[[models]]\nfrom = 'test-clm-7'\naxes.schedule = ['mlm 2']\n[[models]]\naxes.schedule = ['clm 6']",
            ["from 'test-clm-7': no model trained before this one has that name", "Did you mean 'test-clm-6'?"],
        ),
        (
            "[[models]]\naxes.schedule = ['clm 6']\n[[models]]\nfrom = 'test-clm-6'\nset.run.seed = 9\n"
            "axes.schedule = ['mlm 6']",
            [
                "block 2, from 'test-clm-6', schedule 'mlm 6': from 'test-clm-6': it would not go on there",
                "step 0 of 6: run.seed: ",
            ],
        ),
        ("[set.train]\nsteps = 9\n[[models]]\naxes.schedule = ['clm 6']", ["train.steps=9, but the phases"]),
        ("[set]\nrun.dir = 'x'\n[[models]]\naxes.schedule = ['clm 6']", ["run.dir is not set by hand.", "study.dir"]),
        (
            "[[models]]\nset.checkpoint.keep_at = [3]\naxes.schedule = ['clm 6']",
            ["checkpoint.keep_at is not set by hand. Set study.keep, or keep of a block instead."],
        ),
        (
            "[set]\ncheckpoint.keep_weights_only = true\n[[models]]\naxes.schedule = ['clm 6']",
            ["checkpoint.keep_weights_only is not set by hand. Others go on from what a model keeps"],
        ),
    ],
)
def test_mistakes_are_told_together_with_their_place(study, text, messages):
    with pytest.raises(SettingsError) as caught:
        models_of(study(text))
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[set]\nrun = 5\n[[models]]\naxes.schedule = ['clm 6']", "block 1, schedule 'clm 6': invalid value for run"),
        ("[set]\nmodel = 5\n[[models]]\naxes.schedule = ['clm 6']", "invalid value for model: expected a table, got 5"),
        ("[set.fork]\nfrom = 'x'\nstep = 2\n[[models]]\naxes.schedule = ['clm 6']", r"\[fork\] is not set by hand"),
        ("[[models]]\naxes.schedule = ['clm 6']\nrewarm = { peak = 1e-4 }", "block 1: rewarm is of models with from"),
        (
            "[[models]]\naxes.schedule = ['clm 6']\n[[models]]\nfrom = 'test-clm-6'\nset.schedule = [5]",
            "from 'test-clm-6': nothing follows",
        ),
    ],
)
def test_what_is_no_table_is_told(study, text, message):
    with pytest.raises(SettingsError, match=message):
        models_of(study(text))


def test_blocks_and_tables_of_the_base_that_are_none_are_told(study, tmp_path):
    (tmp_path / "shares.toml").write_text("models = 5\n[study]\nbase = 'base.toml'")
    with pytest.raises(SettingsError, match="invalid value for models: expected a list, got 5"):
        load_study("shares.toml")
    (tmp_path / "base.toml").write_text(f"checkpoint = 5\n{BASE}")
    with pytest.raises(SettingsError, match="invalid value for checkpoint: expected a table, got 5"):
        models_of(study("[[models]]\naxes.schedule = ['clm 6']"))


def test_a_base_without_a_preset_gives_its_name_to_models(study, tmp_path):
    sizes = "hidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4"
    (tmp_path / "base.toml").write_text(BASE.replace('preset = "test"', sizes))
    study("[[models]]\naxes.schedule = ['clm 6']")
    for stem, name in (("my base (é)", "my-base-é--clm-6"), (".base", "base-clm-6")):
        (tmp_path / f"{stem}.toml").write_bytes((tmp_path / "base.toml").read_bytes())
        text = (tmp_path / "shares.toml").read_text().replace("base.toml", f"{stem}.toml")
        (tmp_path / "other.toml").write_text(text)
        assert [model.name for model in models_of(load_study("other.toml"))] == [name]
    (tmp_path / "other.toml").write_text(text.replace(".base", "x" * 200))
    (tmp_path / f"{'x' * 200}.toml").write_bytes((tmp_path / "base.toml").read_bytes())
    with pytest.raises(SettingsError, match=r"study\.names='published' makes 'x+-clm-6', which cannot be the name"):
        models_of(load_study("other.toml"))


def test_folders_are_not_in_one_named_like_home(study):
    block = "[[models]]\naxes.schedule = ['clm 6']"
    with pytest.raises(UserError, match=r"^study\.dir=~/a: `~` is not expanded here: give the full path\.$"):
        study(block, head="dir = '~/a'")
    with pytest.raises(UserError, match=r"^grid\.dir=~/a: "):
        study(f"[grid]\ndir = '~/a'\n{block}")


def test_a_mistake_of_many_models_is_told_once(study):
    with pytest.raises(SettingsError) as caught:
        models_of(study("[set.model]\nheads = 2\n[[models]]\naxes.schedule = ['clm 6', 'mlm 6', 'clm 3 + mlm 3']"))
    assert str(caught.value).startswith("block 1, schedule 'clm 6', and 2 more models: unknown key 'model.heads'.")
    assert str(caught.value).count("model.heads") == 1


def test_a_template_has_fields_that_models_have(study):
    with pytest.raises(SettingsError, match=r"no model has a label 'share'.*Labels here: size, objective, clm_share"):
        models_of(study("[[models]]\naxes.schedule = ['clm 6']", head='names = "clm-{share}"'))
    with pytest.raises(SettingsError, match="cannot be the name of a folder"):
        models_of(study("[[models]]\naxes.schedule = ['clm 6']", head='names = "a/{seed}"'))
    for template in ("{seed:{share}}", "{seed:_>9999999999999}"):
        with pytest.raises(SettingsError, match="is no template"):
            models_of(study("[[models]]\naxes.schedule = ['clm 6']", head=f'names = "{template}"'))
    with pytest.raises(SettingsError, match="cannot be the name of a folder"):
        models_of(study("[[models]]\naxes.schedule = ['clm 6']", head='names = "{seed:_>300}"'))


def test_names_of_one_folder_are_refused(study):
    text = "[[models]]\naxes.part = { a = { lr.peak = 1e-3 }, A = { lr.peak = 1e-4 } }"
    with pytest.raises(SettingsError, match=r"the name A is that of block 1, .*, too, which differs in case alone: a"):
        models_of(study(text, head='names = "{part}"'))


def test_models_that_are_from_one_another_are_refused(study):
    block = "[[models]]\nfrom = '{}'\naxes.part.{}.schedule = 'mlm 2'\n"
    with pytest.raises(SettingsError, match=r"^from 'b': no model .* Models cannot start from each other"):
        models_of(study("".join(block.format(*pair) for pair in ("ba", "cb", "ac")), head='names = "{part}"'))


def test_models_that_are_alike_are_refused(study):
    text = "[[models]]\naxes.schedule = ['clm 6', 'clm 3 + clm 3']"
    with pytest.raises(SettingsError, match=r"test-clm-6 .* and test-clm-3-clm-6 .* are the same model"):
        Tree(models_of(study(text)))


def test_figures_show_what_the_axes_change():
    axes = axis_labels(load_study("paper"))
    assert axes == ("size", "clm_share", "budget_steps", "mask_ratio", "start", "training_step", "training_flops")


def test_a_study_goes_into_no_file(study):
    with pytest.raises(UserError, match=r"^study.dir=base.toml: base.toml is not a directory"):
        study("[[models]]\naxes.schedule = ['clm 6']", head='dir = "base.toml"')
