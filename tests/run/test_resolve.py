"""From settings to everything a rank needs."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.core.types import AttentionKind, Targets
from toolkit.engine import gpus
from toolkit.engine import precision as precision_choice
from toolkit.objectives import registry
from toolkit.run import RunFolder, load_run, resolve
from toolkit.run.continuation import read_continuation
from toolkit.run.corpora import open_corpora
from toolkit.run.data import open_run_data, read_rows
from toolkit.run.load import declare_run, read_resolved, to_toml
from toolkit.run.resolve import Outcome, read_run, resolve_run
from toolkit.run.settings import CompleteSettings
from toolkit.run.step_plan import StepPlan
from toolkit.testing.distributed import run_distributed


class Vanishing:
    """Predicts nothing, and on the way removes the folder that its settings name."""

    name = "vanishing"
    attention = AttentionKind.CAUSAL

    class Settings(BaseModel):
        folder: str = ""
        window: int | None = None

    def __init__(self, settings: Any, vocabulary: Any) -> None:
        self._folder = settings.folder

    def build(self, tokens_BS: Any, segments_BS: Any, draws: Any) -> Targets:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Targets(tokens_BS, np.zeros(1, np.int64), tokens_BS.ravel()[:1])


@pytest.fixture
def vanishing(monkeypatch):
    monkeypatch.setitem(registry.KINDS.registered, "vanishing", Vanishing)


def test_selective_checkpointing_of_compiled_blocks_is_refused_at_stage_3(tmp_path):
    overrides = ["train.activation_checkpointing=selective", "train.compile=true"]
    declared = declare_run(str(write_run(tmp_path)), overrides)
    with pytest.raises(SettingsError, match=r"train\.compile=true and ZeRO stage 3 \(zero3\)\.\nSet one of them"):
        resolve_run(declared, ds_config="zero3", num_ranks=1)
    assert resolve_run(declared, ds_config="zero2", num_ranks=1).settings.train.compile


@pytest.mark.parametrize("ranks", [1, 2])
def test_auto_is_the_choice_that_is_made_without_a_file(tmp_path, ranks):
    declared = declare_run(str(write_run(tmp_path)))
    chosen, auto = (resolve_run(declared, ds_config=name, num_ranks=ranks) for name in (None, "auto"))
    assert replace(chosen.division, batches=auto.division.batches) == auto.division
    assert chosen.division.batch == auto.division.batch


def test_steps_whose_rows_only_small_micro_batches_divide_are_told(tmp_path):
    """Of 17 rows, a prime, one runs at a time where eight fit; of 13, one where twelve do."""
    run_file = str(write_run(tmp_path))
    slow = "rows are slow: less than half of the rows that fit are in a micro-batch"
    phase = ("schedule.1.global_batch_rows=17", "train.micro_batch_rows=8")
    (told,) = [line for line in _choices(run_file, *phase) if "slow" in line]
    assert told.startswith(f"steps of 17 {slow}")
    text = run_file.replace("run.toml", "unset.toml")
    Path(text).write_text(Path(run_file).read_text().replace("micro_batch_rows = 4\n", ""))
    (told,) = [line for line in _choices(text, "train.global_batch_rows=13") if "slow" in line]
    assert told.startswith(f"steps of 13 {slow}")
    assert not [line for line in _choices(text, "train.global_batch_rows=16") if "slow" in line]


def _choices(run_file, *overrides):
    return resolve_run(declare_run(run_file, overrides), ds_config=None, num_ranks=1).division.choices


def test_an_optional_setting_of_a_plugin_may_stay_unset(tmp_path, vanishing):
    declared = declare_run(str(write_run(tmp_path)), ["schedule.0.objective=vanishing"])
    again = tmp_path / "again.toml"
    again.write_text(to_toml(open_run_data(declared).run.settings))
    assert load_run(str(again)).objectives["vanishing"].plain() == {"kind": "vanishing", "folder": ""}


def test_a_corpus_without_its_tokenizer_is_refused_before_the_start(tmp_path):
    declared = declare_run(str(write_run(tmp_path)))
    shutil.rmtree(tmp_path / "corpus" / "tokenizer")
    with pytest.raises(CorpusError, match=r"data\.train .*has no folder tokenizer/(.|\n)*Copy the corpus again"):
        open_run_data(declared)


@dataclass(frozen=True)
class _VanishingCase(RunCase):
    def __call__(self) -> Any:
        registry.KINDS.registered["vanishing"] = Vanishing
        return super().__call__()


def test_a_corpus_that_goes_away_during_the_run_does_no_harm(tmp_path):
    run_file, tokenizer = str(write_run(tmp_path)), tmp_path / "corpus" / "tokenizer"
    names = sorted(path.name for path in tokenizer.iterdir())
    overrides = ("schedule.1.objective=vanishing", f'objectives.vanishing.folder="{tokenizer}"', "checkpoint.every=15")
    run_distributed([_VanishingCase(run_file, "zero1", overrides)], world_size=1)
    assert not tokenizer.exists()
    saved = Path(tmp_path / "run" / "checkpoints" / "step-00000020" / "tokenizer")
    assert sorted(path.name for path in saved.iterdir()) == names


@pytest.mark.parametrize(
    ("num_ranks", "rows", "micro_rows", "chosen"),
    [(1, 8, 8, "zero1"), (2, 8, 1, "zero1"), (2, 8, 2, "zero2"), (4, 8, 2, "zero2")],
)
def test_a_deepspeed_file_is_chosen_and_told(tmp_path, num_ranks, rows, micro_rows, chosen):
    """Stage 2 reduces gradients after each micro-batch: with four and more, stage 1 is faster."""
    overrides = [f"train.global_batch_rows={rows}", f"train.micro_batch_rows={micro_rows}"]
    declared = declare_run(str(write_run(tmp_path)), overrides)
    run = resolve_run(declared, ds_config=None, num_ranks=num_ranks)
    assert run.division.ds_config["zero_optimization"]["stage"] == int(chosen[-1])
    assert [choice.startswith(f"--ds-config {chosen}: ") for choice in run.division.choices] == [True]


def test_an_open_precision_is_chosen_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(precision_choice, "faster_on_this_cpu", lambda threads: ("bf16", "it is faster"))
    run_file = write_run(tmp_path)
    run_file.write_text(run_file.read_text().replace('precision = "fp32"\n', ""))
    declared = declare_run(str(run_file))
    for name, precision in (("zero0", "fp32"), ("zero1", "bf16")):
        run = resolve_run(declared, ds_config=name, num_ranks=1)
        assert run.settings.precision == precision
        assert run.division.ds_config["bf16"]["enabled"] == (precision == "bf16")
        (choice,) = run.division.choices
        assert choice.startswith(f"precision {precision}: ")


def test_a_wrong_objective_is_found_before_any_corpus_is_opened(tmp_path):
    overrides = ["objectives.mlm.mask_ratio=1.4", f"data.train={tmp_path / 'nowhere'}", "lr.peak=-1"]
    overrides += ["eval.every=3", "data.validation=x", "trian.steps=3"]
    with pytest.raises(SettingsError) as raised:
        load_run(str(write_run(tmp_path)), overrides)
    for part in ("objectives.mlm.mask_ratio", "lr.peak", "'trian'"):
        assert part in str(raised.value)


def test_mistakes_of_all_kinds_come_together(tmp_path):
    overrides = ["model.preset=nanno", "schedule.0.objective=clmm", "lr.warmup_steps=50", "x", "eval.rows=0"]
    with pytest.raises(SettingsError) as raised:
        load_run(str(write_run(tmp_path)), overrides)
    for part in ("nanno", "'clmm'", "lr.warmup_steps (50)", "--set 'x'", "eval.rows"):
        assert part in str(raised.value)


def test_ranks_read_what_was_resolved(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), ["model.rope_theta=20000.0", "train.compile=true"])
    run = resolve_run(declared, ds_config="zero1", num_ranks=2)
    with run.folder.locked():
        run.write()
    again = read_run(read_resolved(run.folder.settings_file), read_continuation(run.folder), num_ranks=2)
    assert again.settings == run.settings
    assert again.division.batch == run.division.batch
    assert again.division.ds_config == run.division.ds_config
    assert again.division.is_compiled
    with pytest.raises(SettingsError, match=r"micro-batch(es)? a step on each rank, but 1 rank of this run need"):
        read_run(run, run.continuation, num_ranks=1)


@pytest.mark.parametrize("own", ["{}# mine\n", '[model]\npreset = "test"\n', "[run\n"])
def test_a_run_file_that_is_the_users_is_kept(tmp_path, own):
    """One that a start without a checkpoint has left is not: also with other settings."""
    run_file = str(write_run(tmp_path))
    (tmp_path / "run").mkdir()
    for given in ([], ["lr.peak=0.5"]):
        run = resolve_run(declare_run(run_file, given), ds_config="zero1", num_ranks=1)
        run.write()
    file = run.folder.settings_file
    assert not list(file.parent.glob("run.given*"))
    for kept in ("run.given-1.toml", "run.given-2.toml"):
        written = file.read_text()
        file.write_text(text := own.format(written))
        run.write()
        assert (file.read_text(), (file.parent / kept).read_text()) == (written, text)


@pytest.mark.parametrize("gpu_bytes", [None, 10**12])
def test_a_run_has_one_plan_of_steps_and_is_divided_once(tmp_path, monkeypatch, gpu_bytes):
    """Also where the tokenizer decides the vocabulary, which what fits in a GPU's memory depends on."""
    run_file, made, divided = write_run(tmp_path), [], []
    unset = ("vocab_size = 97", "micro_batch_rows = 4", 'precision = "fp32"')
    run_file.write_text("\n".join(line for line in run_file.read_text().splitlines() if line not in unset))
    monkeypatch.setattr(gpus, "has_gpu", lambda: gpu_bytes is not None)
    monkeypatch.setattr(gpus, "gpu_bytes", lambda: gpu_bytes)
    monkeypatch.setattr(precision_choice, "faster_on_this_cpu", lambda threads: ("bf16", "it is faster"))
    build, divide = StepPlan.__init__, resolve.divide_run
    monkeypatch.setattr(StepPlan, "__init__", lambda plan, settings: made.append(plan) or build(plan, settings))
    monkeypatch.setattr(resolve, "divide_run", lambda *given, **named: divided.append(1) or divide(*given, **named))
    run = resolve_run(declare_run(str(run_file)), ds_config=None, num_ranks=2)
    assert made == [run.plan]
    assert len(divided) == 1
    assert (run.settings.model.vocab_size, run.settings.precision) == (128, "bf16")
    with run.folder.locked():
        run.write()
    assert (
        read_run(read_resolved(run.folder.settings_file), read_continuation(run.folder), num_ranks=2).settings
        == run.settings
    )
    assert len(made) == 2


def test_settings_with_a_choice_left_open_are_not_complete(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    assert CompleteSettings.of(settings, precision="bf16").model_dump() == {
        **settings.model_dump(),
        "precision": "bf16",
    }
    with pytest.raises(ValidationError, match="precision"):
        CompleteSettings.of(settings, precision=None)
    unknown = settings.model_copy(update={"model": settings.model.model_copy(update={"vocab_size": None})})
    with pytest.raises(ValidationError, match=r"model\.vocab_size is not known"):
        CompleteSettings.of(unknown, precision="fp32")


def test_a_missing_corpus_is_told_before_ranks_that_do_not_fit(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), [f"data.train={tmp_path / 'nowhere'}"])
    with pytest.raises(CorpusError, match="nowhere"):
        resolve_run(declared, ds_config="zero1", num_ranks=3)


def test_a_folder_has_one_starter_and_one_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.reserved(), folder.locked():
        assert folder.path.is_dir()
        with pytest.raises(SettingsError, match="another run is training in"), folder.reserved():
            pass
    with folder.reserved():
        pass


def test_tokens_that_no_row_has_are_told_at_the_start(tmp_path):
    overrides = ["data.windows=blocks", "data.sequence_length=1024", f"data.validation={tmp_path / 'corpus'}"]
    declared = declare_run(str(write_run(tmp_path)), overrides)
    assert "tokens of" in open_run_data(declared).describe()
    assert "data.windows='blocks' drops" in open_run_data(declared).describe()


@pytest.mark.parametrize("is_past", [True, False])
def test_the_best_is_by_an_objective_that_is_evaluated(tmp_path, monkeypatch, is_past):
    """Neither by one of phases before a fork alone, nor by mlm without a mask token."""
    overrides = ["objectives.early={kind='clm'}", "schedule.0.objective=early", "schedule.1.objective=clm"]
    own = ["fork={from='x', step=10}", "checkpoint.keep_best=early"] if is_past else ["checkpoint.keep_best=mlm"]
    run = declare_run(str(write_run(tmp_path)), [*overrides, *own])
    corpora = open_corpora(run)
    if not is_past:
        corpus = corpora.first.corpus
        monkeypatch.setattr(corpus, "vocabulary", replace(corpus.vocabulary, mask_id=None))
    with pytest.raises(SettingsError, match=r"has no validation loss of its own\.\nName one of: clm, "):
        read_rows(run, corpora)


@pytest.mark.parametrize(
    ("step", "until", "said"),
    [
        (0, None, "stopped at step 0 of 20. Start the same command again to resume."),
        (3, 4, "stopped at step 3 of 20, saved in runs/a. Start the same command again to resume."),
        (4, 4, "stopped at step 4 of 20, saved in runs/a. Start the same command again without --until to resume."),
        (20, 20, "finished at step 20 in runs/a. Next:"),
    ],
)
def test_a_run_says_last_how_it_resumes(step, until, said):
    assert Outcome(Path("runs/a"), step, 20, was_there=False).ending(until).splitlines()[0] == said
