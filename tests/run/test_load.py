"""Run files, presets, --set: every wrong key in one message."""

import tomllib

import pytest

from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.engine.lr import learning_rate_at
from toolkit.model.presets import MODEL_PRESETS
from toolkit.run import load_run, run_presets
from toolkit.run.comparison import check_same_run
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_settings, read_resolved, to_toml
from toolkit.run.step_plan import schedule_of

_RUN = """
[model]
preset = "test"
[data]
train = "corpus"
[[schedule]]
objective = "clm"
steps = 6
[[schedule]]
objective = "mlm"
steps = 4
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(_RUN)
    return str(path)


def test_defaults_are_the_recipe(run_file):
    settings = load_run(run_file)
    assert settings.run.dir == "runs/mine"
    assert settings.precision is None
    assert (settings.train.weight_decay, settings.train.beta1, settings.train.beta2) == (0.1, 0.9, 0.95)
    assert (settings.train.epsilon, settings.train.grad_clip) == (1e-5, 1.0)
    assert settings.train.decay_norms_and_embeddings
    assert settings.lr.peak == 5e-4
    assert settings.train.global_batch_rows * settings.data.sequence_length == 2_359_296


def test_set_reaches_groups_lists_and_strings(run_file):
    settings = load_run(
        run_file, ["lr.peak=0.1", "schedule.1.steps=7", "data.windows=blocks", "objectives.mlm.mask_ratio=0.3"]
    )
    assert settings.lr.peak == 0.1
    assert schedule_of(settings).total_steps == 13
    assert settings.data.windows == "blocks"
    assert settings.objectives["mlm"].settings.mask_ratio == 0.3


def test_model_keys_win_over_the_preset(run_file):
    settings = load_run(run_file, ["model.num_hidden_layers=5"])
    assert settings.model.num_hidden_layers == 5
    assert settings.model.hidden_size == MODEL_PRESETS["test"].hidden_size


def test_resolved_settings_run_again(run_file, tmp_path):
    settings = load_run(run_file, ["train.micro_batch_rows=4"])
    again = tmp_path / "again.toml"
    again.write_text(to_toml(settings))
    assert load_run(str(again)) == settings


@pytest.mark.parametrize(
    ("written", "refused"),
    [
        # The same numbers, where they were left out.
        (["lr.warmup_steps=1", "schedule.0.global_batch_rows=1152"], None),
        # It is never reached.
        (["objectives.diffusion={}"], None),
        (["lr.floor=0.1"], r"^the run in .*\n  lr\.floor: was 0\.0, now 0\.1\nResume"),
        (["schedule.1.steps=5"], r"\n  schedule\.1\.steps: was 4, now 5\n"),
        (["run.seed=8", "train.grad_clip=2.0"], r"\n  run\.seed: was 0, now 8\n  train\.grad_clip: was 1\.0, now 2\.0"),
    ],
)
def test_a_run_is_the_same_where_it_parts_nowhere_however_it_is_written(run_file, written, refused):
    saved = snapshot(load_run(run_file, ["lr.warmup_steps=1", "lr.decay_steps=2"]))
    given = load_run(run_file, ["lr.warmup_steps=1", "lr.decay_steps=2", *written])
    if refused is None:
        check_same_run(saved, given)
        return
    with pytest.raises(SettingsError, match=refused):
        check_same_run(saved, given)


def test_what_no_number_depends_on_may_change(run_file):
    free = [
        "train.activation_checkpointing=full",
        "model.max_position_embeddings=4096",
        "train.attention_kernel=flash2",
    ]
    check_same_run(snapshot(load_run(run_file)), load_run(run_file, free))


def test_a_scheduler_is_replaced_by_the_phases_that_it_makes(run_file, tmp_path):
    settings = load_run(run_file, ["scheduler.kind=alternate", "scheduler.cycles=2"])
    assert [(phase.objective, phase.steps) for phase in settings.schedule] == [("clm", 6), ("mlm", 4)] * 2
    again = tmp_path / "again.toml"
    again.write_text(to_toml(settings))
    assert "scheduler" not in tomllib.loads(again.read_text())
    assert load_run(str(again)) == read_resolved(again).settings == settings
    check_same_run(snapshot(settings), load_run(str(again)))


def test_mistakes_of_the_scheduler_and_of_the_schedule_are_told_together(run_file):
    with pytest.raises(SettingsError) as caught:
        load_run(run_file, ["scheduler.kind=alternat", "schedule.1.steps=0", "lr.peak=-1"])
    for found in ("unknown scheduler 'alternat'", "invalid value for schedule.1.steps", "invalid value for lr.peak"):
        assert found in str(caught.value)
    with pytest.raises(SettingsError, match="invalid value for scheduler: expected a table, got 'alternate'"):
        load_run(run_file, ["scheduler=alternate"])


@pytest.mark.parametrize("name", run_presets())
def test_every_preset_loads(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name in ("adapt", "detour"):
        with pytest.raises(
            CheckpointError, match=r"init\.from=models/(de|en)coder is not a directory(.|\n)*toolkit convert"
        ):
            load_run(name)
        return
    settings = load_run(name)
    assert schedule_of(settings).phases[0].objective == ("mlm" if name.startswith("modernbert") else "clm")
    if name in ("210m", "610m", "1b", "3b"):
        assert schedule_of(settings).total_steps == 42_000
        assert settings.model.vocab_size == 128_256
        assert settings.data.windows == "random-cut"
        assert (settings.lr.warmup_steps, settings.lr.decay_steps) == (2000, 2000)


@pytest.mark.parametrize(
    ("name", "steps", "ramps"),
    [("adapt", (20,), (1, 10)), ("detour", (20, 2), (1, 2)), ("detour", (2000, 200), (110, 200))],
)
def test_presets_to_adapt_with_are_shortened_by_their_steps_alone(name, steps, ramps):
    shape = [f"model.{key}=64" for key in ("vocab_size", "hidden_size", "intermediate_size")]
    shape += ["model.num_hidden_layers=1", "model.num_attention_heads=2"]
    settings = load_run(name, [*shape, *(f"schedule.{number}.steps={each}" for number, each in enumerate(steps))])
    assert settings.lr.ramps(sum(steps)) == ramps


def test_the_detour_decays_over_its_mlm_to_a_tenth():
    shape = (f"model.{key}=64" for key in ("vocab_size", "hidden_size", "intermediate_size"))
    settings = load_run("detour", [*shape, "model.num_hidden_layers=1", "model.num_attention_heads=2"])
    assert [(phase.objective, phase.steps) for phase in settings.schedule] == [("clm", 2000), ("mlm", 200)]
    rates = [learning_rate_at(step, settings.lr, total_steps=2200) for step in range(2200)]
    assert rates[0] == pytest.approx(2e-4 / 110)
    assert rates[109] == rates[1999] == rates[2000] == 2e-4
    # 2e-4 x (0.1 + 0.9 x (1 - sqrt(d / 200))) behind d of the 200 steps.
    by_hand = {2001: 1.8727e-4, 2050: 1.1e-4, 2100: 7.2721e-5, 2199: 2.0451e-5}
    assert {step: rates[step] for step in by_hand} == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        ("trian.steps=4", ["unknown key 'trian'", "Did you mean 'train'?"]),
        ("train.precision=fp32", ["unknown key 'train.precision'", "Did you mean 'precision'?"]),
        ("schedule.0.objectiv=clm", ["unknown key 'schedule.0.objectiv'", "Did you mean 'objective'?"]),
        ("model.preset=nanno", ["unknown model.preset='nanno'", "Did you mean 'nano'?"]),
        ("lr.peak=-1", ["value for lr.peak:", "got -1", "above 0", "Meaning: Peak learning rate"]),
        ("lr.peak=true", ["value for lr.peak:", "got true"]),
        ("lr.peak=inf", ["lr.peak", "finite"]),
        ("lr.warmup_steps=11", ["longer than the run"]),
    ],
)
def test_what_is_wrong_is_named(run_file, override, messages):
    with pytest.raises(SettingsError) as raised:
        load_run(run_file, [override])
    for message in messages:
        assert message in str(raised.value)


def test_data_without_train_is_named(run_file, tmp_path):
    path = tmp_path / "part.toml"
    path.write_text(_RUN.replace('train = "corpus"', "sequence_length = 64"))
    with pytest.raises(SettingsError, match=r"data.train is missing"):
        load_run(str(path))


def test_several_findings_come_in_one_message(run_file):
    with pytest.raises(SettingsError) as raised:
        load_run(run_file, ["lr.peek=1", "train.step=3"])
    assert "lr.peek" in str(raised.value)
    assert "train.step" in str(raised.value)


def test_settings_made_in_python_must_not_contradict_one_another(run_file):
    settings = load_run(run_file)
    with pytest.raises(SettingsError, match=r"eval\.every=2 asks for validation losses"):
        declare_settings(settings.model_copy(update={"eval": settings.eval.model_copy(update={"every": 2})}))


def test_a_group_that_is_wrong_contradicts_no_other(run_file):
    """What stands in for it has no validation corpus."""
    with pytest.raises(SettingsError, match=r"data\.train") as raised:
        load_run(run_file, ["data={train=4, validation='held-out'}", "eval.every=3"])
    assert "eval.every" not in str(raised.value)


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path, run_file):
    (tmp_path / "marked.toml").write_text(_RUN, encoding="utf-8-sig")
    assert load_run(str(tmp_path / "marked.toml")).schedule == load_run(run_file).schedule


def test_no_such_run_file_lists_the_presets():
    with pytest.raises(SettingsError, match="Did you mean 'smoke'"):
        load_run("smok")


def test_the_file_of_a_moved_run_starts_no_other_run(tmp_path, monkeypatch):
    """The documented resume, from the working directory that `run.dir` is relative to, and from another one."""
    (tmp_path / "runs/a/checkpoints/step-00000020").mkdir(parents=True)
    file = tmp_path / "runs/a/run.toml"
    file.write_text(f'[run]\ndir = "runs/a"\n{_RUN}')
    monkeypatch.chdir(tmp_path)
    assert load_run("runs/a/run.toml").run.dir == "runs/a"
    (tmp_path / "linked").symlink_to(tmp_path / "runs/a")
    assert load_run("linked/run.toml").run.dir == "runs/a"
    (tmp_path / "runs/a").rename(tmp_path / "archive")
    (tmp_path / "linked").unlink()
    with pytest.raises(SettingsError, match=r"(?s)archive/run\.toml is in .*: --set run\.dir=archive\. To start"):
        load_run("archive/run.toml")
    (tmp_path / "link.toml").symlink_to(tmp_path / "archive/run.toml")
    with pytest.raises(SettingsError, match=r"link\.toml is in the folder of a run with checkpoints"):
        load_run("link.toml")
    monkeypatch.chdir("/")
    with pytest.raises(SettingsError, match=r"runs/a, which is /runs/a from here"):
        load_run(str(tmp_path / "archive/run.toml"))
    for folder in (tmp_path / "archive", tmp_path / "new"):
        assert load_run(str(tmp_path / "archive/run.toml"), [f"run.dir={folder}"]).run.dir == str(folder)
    (tmp_path / "archive/checkpoints/step-00000020").rmdir()
    assert load_run(str(tmp_path / "archive/run.toml")).run.dir == "runs/a"
