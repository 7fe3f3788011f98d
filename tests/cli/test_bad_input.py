"""Bad input to `toolkit train`: exit 2 and one message that says what was asked, what was found, what to do."""

import re
import subprocess
import sys

import pytest

from toolkit.cli.main import main
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.runs import write_run


def _toolkit(monkeypatch, capsys, *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["toolkit", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--set", "train.micro_batch_row=2"], ["unknown key 'train.micro_batch_row'", "'micro_batch_rows'"]),
        (["--set", "objectives.mlm.mask_ratio=1.4"], ["objectives.mlm.mask_ratio", "1.4"]),
        (["--set", "data.train=no/such/corpus"], ["no/such/corpus", "toolkit preprocess"]),
        (["--set", 'data.train=[{path="a"}]'], ["run.toml: data.train.0.weight is missing.\n"]),
        (["--set", 'data.train=[{path="a",weight=0}]'], ["data.train.0.weight = 0 is refused"]),
        (["--set", "parallel.pp=4"], ["parallel.pp=4", "ZeRO stage 2", "parallel.pp=1"]),
        (["--set", "precision=bf16", "--ds-config", "zero0"], ["stage 0", "zero1"]),
        (["--set", "train.micro_batch_rows=3"], ["does not divide 8"]),
        (["--num-procs", "3"], ["3 data-parallel rank"]),
        (["--set", "schedule.0.objective=clmm"], ["clmm", "Did you mean 'clm'"]),
        (["--set", "data.windows=blocks", "--set", "data.sequence_length=100000"], ["row"]),
        (["--ds-config", "zero9"], ["'zero9' does not exist", "zero0, zero1, zero2, zero3"]),
    ],
)
def test_refused_with_one_message(monkeypatch, capsys, tmp_path, options, messages):
    code, err = _toolkit(monkeypatch, capsys, "train", str(write_run(tmp_path)), *options)
    assert code == 2, err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    for message in messages:
        assert message in err


def test_a_corpus_of_another_tokenizer(monkeypatch, capsys, tmp_path):
    documents = random_documents(9, vocabulary_size=50, max_length=90)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=50, eos=0, pad=1, mask=2)
    run_file = write_run(tmp_path)
    code, err = _toolkit(monkeypatch, capsys, "train", str(run_file), "--set", f"data.validation={other}")
    assert code == 2
    assert "different tokenizers" in err
    assert str(other) in err


def test_a_dry_run_shows_what_would_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["toolkit", "train", str(write_run(tmp_path)), "--dry-run"])
    with pytest.raises(SystemExit) as left:
        main()
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "vocab_size = 97" in out
    assert "# steps 11 to 20: mlm" in out
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_the_epochs_of_every_corpus_of_a_blend(monkeypatch, capsys, tmp_path):
    run_file = write_run(tmp_path)
    blend = ", ".join(f'{{path="{tmp_path / name}",weight={n}}}' for name, n in (("corpus", 3), ("validation", 1)))
    options = ["--set", f"data.train=[{blend}]", "--set", "train.global_batch_rows=16", "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["toolkit", "train", str(run_file), *options])
    with pytest.raises(SystemExit) as left:
        main()
    out = capsys.readouterr().out
    assert left.value.code == 0, out
    lines = [line for line in out.splitlines() if line.startswith("# ")]
    assert lines[0] == "# a blend of 2 corpora, 320 rows in the run:"
    assert re.search(rf"{tmp_path}/corpus: .* rows of 64; 75.00% of the run takes 240 rows, 1.98 epochs", lines[1])
    assert re.search(rf"{tmp_path}/validation: .* 25.00% of the run takes 80 rows, \d.\d\d epochs", lines[2])


@pytest.mark.parametrize("command", ["branch", "plan", "grid", "doctor", "watch"])
def test_what_nobody_has_built_says_so(monkeypatch, capsys, command):
    code, err = _toolkit(monkeypatch, capsys, command, "anything", "--at-all")
    assert (code, err) == (2, f"error: `toolkit {command}` is not available yet.\n")


def test_help_lists_what_is_built_and_loads_nothing_heavy():
    script = (
        "import sys; sys.argv = ['toolkit', '--help']\n"
        "from toolkit.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'numpy', 'pydantic', 'rich', 'deepspeed'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    listed = [line.split()[0] for line in lines[lines.index("Commands:") + 1 : -1]]
    data, training = ["tokenizer", "preprocess", "adopt", "inspect", "verify"], ["train", "convert", "finetune"]
    assert listed == ["quickstart", *data, *training]


def test_an_unknown_command_exits_with_2(monkeypatch, capsys):
    code, err = _toolkit(monkeypatch, capsys, "trian")
    assert code == 2
    assert "trian" in err
