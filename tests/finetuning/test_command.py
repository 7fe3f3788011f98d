"""`toolkit finetune` as it is typed."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import AutoModel

from tests.support.checkpoints import write_tiny_run
from tests.support.hf_encoders import save_encoder
from tests.support.packages import lay_down_entry_points
from toolkit import finetuning
from toolkit.checkpoint.read import open_checkpoint


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("sentence,stars\nw1 w2,1\nw3,0\nw4 w5,1\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("family", ["eurobert", "modernbert", "bert"])
def test_options_reach_the_settings(toolkit, tmp_path, data, family):
    model, output = save_encoder(family, tmp_path / "model"), tmp_path / "deep" / "out"
    code, out, err = toolkit(
        "finetune", "sc", model, "--train", data, "--validation", data, "--test", data, "--output", output,
        "--lr", "1e-3", "--seed", 7, "--steps", 2, "--text-columns", "sentence", "--label-column", "stars",
    )  # fmt: skip
    assert code == 0, err
    result = json.loads((output / "result.json").read_text())
    assert (result["learning_rate"], result["seed"], result["steps"]) == (1e-3, 7, 2)
    assert result["dataset"] == tmp_path.name
    assert result["majority"] == pytest.approx(2 / 3)
    labels = [json.loads(line)["label"] for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert labels == ["1", "0", "1"]
    use = out.splitlines()[-1].removeprefix("  in Python: ")
    folder = f"'{output / 'model'}'"
    made = (
        "toolkit.finetuning.load_classifier("
        if family == "bert"
        else "transformers.pipeline('text-classification', model="
    )
    assert use == f"{made}{folder})('a text')"
    (answer,) = eval(use, {"toolkit": SimpleNamespace(finetuning=finetuning), "transformers": transformers})
    assert (answer if family == "bert" else answer["label"]) in ("0", "1")
    assert ["test", *(f"{result['test'][metric]:.4f}" for metric in ("accuracy", "f1_macro", "mcc"))] in [
        line.split() for line in out.splitlines()
    ]


def test_any_setting_is_changed_with_set(toolkit, tmp_path, data):
    model, output = save_encoder("eurobert", tmp_path / "model"), tmp_path / "out"
    values = ("epochs=2", "batch_rows=2", "micro_rows=1", "max_length=8", "metric=mcc", "text_columns=['sentence']")
    code, out, err = toolkit(
        "finetune", "sc", model, "--train", data, "--test", data, "--output", output,
        "--label-column", "stars", *(word for value in values for word in ("--set", value)),
    )  # fmt: skip
    assert code == 0, err
    result = json.loads((output / "result.json").read_text())
    assert (result["steps"], result["metric"], result["majority"]) == (4, "mcc", 0.0)
    assert out.split()[:3] == ["mcc", "accuracy", "f1_macro"]


@pytest.mark.parametrize(
    ("words", "shown", "not_shown"),
    [
        ([], ["batch_rows", "[default: 32]", "--lr"], ["pair_labels", "window_overlap"]),
        (["sc"], ["batch_rows", "Settings of sc", "pair_labels", "sst2, qqp, mnli"], ["window_overlap"]),
        (["--lr", "1e-3", "qa"], ["batch_rows", "Settings of qa", "window_overlap", "[default: 128]"], ["pair_labels"]),
        (
            ["from_louder"],
            ["batch_rows", "Settings of from_louder", "How loud.", "[default: 11]"],
            ["pair_labels"],
        ),
    ],
)
def test_help_shows_the_settings_of_the_task(monkeypatch, toolkit, tmp_path, words, shown, not_shown):
    (tmp_path / "louder.py").write_text(
        "from toolkit.finetuning.settings import FinetuningSettings\n"
        "from toolkit.finetuning.tc.task import TokenClassification\n"
        'class Louder(FinetuningSettings):\n    volume: int = 11\n    """How loud."""\n'
        "class Elsewhere(TokenClassification):\n    name, Settings = 'from_louder', Louder\n"
    )
    lay_down_entry_points(tmp_path, "louder", {"toolkit.tasks": {"from_louder": "louder:Elsewhere"}})
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = toolkit("finetune", *words, "--help")
    assert code == 0
    text = " ".join(out.split())
    assert [word in text for word in (*shown, *not_shown)] == [True] * len(shown) + [False] * len(not_shown)


def test_a_run_folder_without_a_checkpoint_is_refused(toolkit, tmp_path):
    data = tmp_path / "train.tsv"
    data.write_text("text\tlabel\na\t0\nb\t1\n", encoding="utf-8")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    code, _, err = toolkit(
        "finetune", "sc", tmp_path / "run", "--train", data, "--test", data, "--output", tmp_path / "out"
    )
    assert code == 2
    assert "checkpoint" in err


def test_a_checkpoint_is_converted_on_the_way(toolkit, tmp_path):
    write_tiny_run(tmp_path)
    data = tmp_path / "train.tsv"
    data.write_text("text\tlabel\nThe old miller\t0\nA young fox\t1\n", encoding="utf-8")
    code, _, err = toolkit(
        "finetune", "sc", tmp_path / "run", "--train", data, "--test", data, "--output", tmp_path / "out",
        "--steps", 1, "--lr", "1e-8",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["model"] == str(tmp_path / "run")
    trained = AutoModel.from_pretrained(tmp_path / "out" / "model").embed_tokens.weight
    ours = open_checkpoint(tmp_path / "run").weight("model.embed_tokens.weight")
    assert torch.allclose(trained, ours, atol=1e-7)
