"""What a run leaves in its output folder, also where it is stopped."""

import json

import pytest
from transformers import Trainer

from tests.support.hf_encoders import save_encoder
from toolkit.core.errors import UserError
from toolkit.experiments.finetune import finetune
from toolkit.finetuning import Keep, Split, open_source, prepare, run_cell
from toolkit.finetuning.sc.task import SequenceClassification, SequenceClassificationSettings

SETTINGS = SequenceClassificationSettings(learning_rate=1e-3, steps=4, batch_rows=2)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\nThe old miller\t0\nA young fox\t1\nw1 w2\t0\nw3\t1\n", encoding="utf-8")
    return path


def run(rows, model, output, settings=SETTINGS):
    return finetune("sc", model, train=rows, test=rows, output=output, settings=settings)


def test_a_later_model_takes_the_whole_folder(tmp_path, rows):
    for family in ("bert", "eurobert"):
        run(rows, save_encoder(family, tmp_path / family), tmp_path / "out")
    # What BERT's run wrote would be loaded with EuroBERT's weights.
    assert not (tmp_path / "out" / "model" / "head.safetensors").exists()
    assert json.loads((tmp_path / "out" / "model" / "config.json").read_text())["model_type"] == "eurobert"


@pytest.mark.parametrize(("protocol", "side"), [("standard", "left"), ("paper", None)])
def test_the_saved_tokenizer_truncates_as_training_and_no_more_than_the_models_own(tmp_path, rows, protocol, side):
    rows.write_text(rows.read_text() + "w1 " * 60 + "\t1\n", encoding="utf-8")
    config = save_encoder("bert", tmp_path / "model") / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"truncation_side": "left"}))
    run(rows, config.parent, tmp_path / "out", SETTINGS.model_copy(update={"protocol": protocol}))
    saved = json.loads((tmp_path / "out" / "model" / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)
    assert json.loads((tmp_path / "out" / "model" / "tokenizer_config.json").read_text()).get("truncation_side") == side


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["trainer._StepEnds.on_step_end", "cell._save_model"])
def test_a_run_that_is_stopped_changes_nothing_and_is_redone(tmp_path, rows, monkeypatch, place):
    model, other = save_encoder("eurobert", tmp_path / "model"), SETTINGS.model_copy(update={"seed": 1})
    run(rows, model, tmp_path / "out")
    kept = files(tmp_path / "out")
    # As a kill leaves it.
    (tmp_path / "out" / ".unfinished" / "model").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(f"toolkit.finetuning.{place}", kill)
        with pytest.raises(KeyboardInterrupt):
            run(rows, model, tmp_path / "out", other)
    assert files(tmp_path / "out") == kept
    for name in ("out", "undisturbed"):
        run(rows, model, tmp_path / name, other)
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed") != kept
    assert not (tmp_path / "out" / ".unfinished").exists()


def test_no_result_stands_beside_another_runs_model(tmp_path, rows, monkeypatch):
    model = save_encoder("eurobert", tmp_path / "model")
    run(rows, model, tmp_path / "out")
    monkeypatch.setattr("toolkit.finetuning.cell.write_predictions", kill)
    with pytest.raises(KeyboardInterrupt):
        run(rows, model, tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize(("scores", "found"), [({"accuracy": float("nan")}, "nan"), ({"f1_macro": 0.5}, "None")])
def test_a_score_that_is_no_number_is_no_result(tmp_path, rows, monkeypatch, scores, found):
    """As a task of another package may give one; a grid would take its result for a damaged one."""
    monkeypatch.setattr(SequenceClassification, "score", lambda self, data, answers: dict.fromkeys(answers, scores))
    monkeypatch.setattr(SequenceClassification, "baseline", lambda self, data: None)
    with pytest.raises(UserError, match=rf"the task sc scored the test split with accuracy = {found}, expected"):
        run(rows, save_encoder("eurobert", tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()


def kill(*_, **__):
    raise KeyboardInterrupt


def test_what_is_not_a_former_runs_model_is_never_replaced(tmp_path, rows):
    model = save_encoder("eurobert", tmp_path / "model")
    with pytest.raises(UserError, match=r"model is MODEL itself, .* Choose another output folder \(--output\)"):
        run(rows, model, tmp_path)
    assert (model / "model.safetensors").is_file()
    kept = tmp_path / "out" / "model" / "config.json"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(UserError, match=r"is not a model that could be replaced: it has no finetuning\.json"):
        run(rows, model, tmp_path / "out")
    assert kept.exists()


@pytest.mark.parametrize("has_target", [True, False])
def test_a_link_in_the_models_place_is_refused_before_training(tmp_path, rows, monkeypatch, has_target):
    model, link = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out" / "model"
    run(rows, model, link.parent)
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere" if has_target else tmp_path / "nowhere")
    kept = files(link.parent)
    monkeypatch.setattr(Trainer, "train", kill)
    with pytest.raises(UserError, match=r"out/model is a symbolic link, .* Remove the link, or choose another output"):
        run(rows, model, link.parent)
    assert files(link.parent) == kept


def test_trained_weights_are_taken_for_the_same_start_and_inputs_alone(tmp_path, rows, monkeypatch):
    """A cell with another test file, then one with another row to train on, then one with another seed."""
    model, other = save_encoder("eurobert", tmp_path / "model"), tmp_path / "other.tsv"
    other.write_text(rows.read_text() + "w5\t0\n", encoding="utf-8")
    trained, train = [], Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, **given: (trained.append(self), train(self, **given))[1])

    def result(name, *, train=rows, test=rows, seed=0, **shared):
        task = SequenceClassification(SETTINGS.model_copy(update={"seed": seed}))
        files = {Split.TRAIN: train, Split.TEST: test}
        prepared = prepare(task, files, task.read(files), open_source(str(model)))
        run_cell(prepared, tmp_path / name, model_name="model", keep=Keep.SCORES, **shared)
        return [(tmp_path / name / file).read_bytes() for file in ("result.json", "predictions.jsonl")]

    for cell, num_trained in (({}, 1), ({"test": other}, 1), ({"train": other}, 2), ({"train": other, "seed": 1}, 3)):
        found = result("shared", **cell, training=tmp_path / "training")
        assert len(trained) == num_trained
        assert found == result("alone", **cell)
        trained.pop()
