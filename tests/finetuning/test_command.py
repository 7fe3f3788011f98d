"""`toolkit finetune` as it is typed."""

import json
import sys

import pytest
import torch
from transformers import AutoModel

from tests.support.checkpoints import write_tiny_run
from tests.support.hf_encoders import save_encoder
from toolkit.checkpoint.read import open_checkpoint
from toolkit.cli import main


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["toolkit", "finetune", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, capsys.readouterr()


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("sentence,stars\nw1 w2,1\nw3,0\nw4 w5,1\n", encoding="utf-8")
    return path


def test_options_reach_the_settings(monkeypatch, capsys, tmp_path, data):
    model, output = save_encoder("eurobert", tmp_path / "model"), tmp_path / "deep" / "out"
    code, printed = run(
        monkeypatch, capsys, "sc", model, "--train", data, "--validation", data, "--test", data, "--output", output,
        "--lr", "1e-3", "--seed", 7, "--steps", 2, "--text-columns", "sentence", "--label-column", "stars",
    )  # fmt: skip
    assert code == 0, printed.err
    result = json.loads((output / "result.json").read_text())
    assert (result["learning_rate"], result["seed"], result["steps"]) == (1e-3, 7, 2)
    assert result["dataset"] == tmp_path.name
    assert result["majority"] == pytest.approx(2 / 3)
    labels = [json.loads(line)["label"] for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert labels == ["1", "0", "1"]
    assert ["test", *(f"{result['test'][metric]:.4f}" for metric in ("accuracy", "f1_macro", "mcc"))] in [
        line.split() for line in printed.out.splitlines()
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sequence"], "unknown task 'sequence'. Choose one of: "),
        (["sc", "--lr", "-1"], "invalid value for --lr: expected a value above 0, got -1.0"),
        (["sc", "--lr", "nan"], "invalid value for --lr: expected a finite number, got nan"),
        (["sc", "--steps", "0"], "invalid value for --steps: expected at least 1, got 0"),
        (["sc", "--text-columns", "a,b,c"], "for --text-columns"),
        (["sc"], "no column 'text' or 'label'; found: 'sentence', 'stars'"),
    ],
)
def test_what_cannot_run_leaves_with_2(monkeypatch, capsys, tmp_path, data, words, message):
    task, *options = words
    code, printed = run(
        monkeypatch, capsys, task, tmp_path, "--train", data, "--test", data, "--output", tmp_path / "out", *options
    )
    assert code == 2
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "out").exists()


def test_a_run_folder_without_a_checkpoint_is_refused(monkeypatch, capsys, tmp_path):
    data = tmp_path / "train.tsv"
    data.write_text("text\tlabel\na\t0\nb\t1\n", encoding="utf-8")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    code, printed = run(
        monkeypatch, capsys, "sc", tmp_path / "run", "--train", data, "--test", data, "--output", tmp_path / "out"
    )
    assert code == 2
    assert "checkpoint" in printed.err


def test_a_checkpoint_is_converted_on_the_way(monkeypatch, capsys, tmp_path):
    write_tiny_run(tmp_path)
    data = tmp_path / "train.tsv"
    data.write_text("text\tlabel\nThe old miller\t0\nA young fox\t1\n", encoding="utf-8")
    code, printed = run(
        monkeypatch, capsys, "sc", tmp_path / "run", "--train", data, "--test", data, "--output", tmp_path / "out",
        "--steps", 1, "--lr", "1e-8",
    )  # fmt: skip
    assert code == 0, printed.err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["model"] == str(tmp_path / "run")
    trained = AutoModel.from_pretrained(tmp_path / "out" / "model").embed_tokens.weight
    ours = open_checkpoint(tmp_path / "run").weight("model.embed_tokens.weight")
    assert torch.allclose(trained, ours, atol=1e-7)
