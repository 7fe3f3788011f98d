"""`toolkit --help` and `toolkit train --dry-run`: what is shown without doing anything."""

import os
import re

import pytest
import typer

from tests.support.apart import run_apart
from tests.support.runs import write_run
from toolkit.cli.main import application


def test_a_dry_run_shows_what_would_run(toolkit, tmp_path):
    code, out, _ = toolkit("train", write_run(tmp_path), "--dry-run")
    assert code == 0
    assert "vocab_size = 97" in out
    assert "# steps 11 to 20: mlm" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("given", "wait"), [("", "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_threads_of_ranks_are_what_they_inherit(monkeypatch, toolkit, tmp_path, given, wait):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", given)
    toolkit("train", write_run(tmp_path), "--threads", "3", "--dry-run")
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("3", wait)


def test_a_dry_run_shows_the_phases_that_the_scheduler_makes(toolkit, tmp_path):
    options = ["--set", 'scheduler={kind="alternate",cycles=2}', "--dry-run"]
    _, out, _ = toolkit("train", write_run(tmp_path, phase_steps=3), *options)
    shown = re.findall(r"# steps (\d+) to (\d+): (\w+), 3 steps", out)
    assert shown == [("1", "3", "clm"), ("4", "6", "mlm"), ("7", "9", "clm"), ("10", "12", "mlm")]
    assert out.count('", steps = 3,') == 4
    assert "scheduler" not in out


def test_a_dry_run_says_the_epochs_of_every_corpus_of_a_blend(toolkit, tmp_path):
    run_file = write_run(tmp_path)
    blend = ", ".join(f'{{path="{tmp_path / name}",weight={n}}}' for name, n in (("corpus", 3), ("validation", 1)))
    options = ["--set", f"data.train=[{blend}]", "--set", "train.global_batch_rows=16", "--dry-run"]
    code, out, err = toolkit("train", run_file, *options)
    assert code == 0, err
    told = out[out.index("# a blend of 2 corpora, 320 rows in the run:") :]
    assert re.search(rf"{tmp_path}/corpus: .* rows of 64; 75.00% of the run takes 240 rows, 1.98 epochs", told)
    assert re.search(rf"{tmp_path}/validation: .* 25.00% of the run takes 80 rows, \d.\d\d epochs", told)


def test_help_lists_what_is_built_and_loads_nothing_heavy():
    script = (
        "import sys; sys.argv = ['toolkit', '--help']\n"
        "from toolkit.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'numpy', 'pydantic', 'rich', 'deepspeed'} & set(sys.modules)))"
    )
    done = run_apart("-c", script)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    listed = [line.split()[0] for line in lines[lines.index("Commands:") + 1 : -1]]
    data, training = (
        ["tokenizer", "preprocess", "adopt", "inspect", "verify"],
        ["train", "doctor", "branch", "merge", "study", "convert"],
    )
    assert listed == ["quickstart", *data, *training, "finetune", "predict", "score", "grid", "report"]


def _commands():
    """Every command with its words: ('tokenizer', 'train') for one inside a group."""
    root = typer.main.get_command(application())
    for name in root.list_commands(None):
        command = root.resolve_command(typer.Context(root), [name])[1]
        inner = getattr(command, "commands", None)
        yield from [((name, below), one) for below, one in inner.items()] if inner else [((name,), command)]


@pytest.mark.parametrize(("words", "command"), [pytest.param(*found, id=found[0][0]) for found in _commands()])
def test_every_command_shows_examples_that_parse(words, command, toolkit):
    """Short help option too; an option that an example names exists, and all that is required is there."""
    _, shown, _ = toolkit(*words, "-h")
    assert shown.splitlines()[0].startswith(f"Usage: toolkit {' '.join(words)} [OPTIONS]")
    assert not set("{}<>") & set(shown.splitlines()[0])
    examples = [line.split() for line in shown.partition("Examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        assert example[: len(words) + 1] == ["toolkit", *words]
        command.make_context(" ".join(words), example[len(words) + 1 :])


@pytest.mark.parametrize(
    ("line", "number", "completions"),
    [
        ("toolkit tr", 1, ["train"]),
        ("toolkit tokenizer tr", 2, ["train"]),
        ("toolkit verify --he", 2, ["--help"]),
        ("toolkit convert --to-", 2, ["--to-hf"]),
    ],
)
def test_a_shell_completes_commands_and_options(monkeypatch, toolkit, line, number, completions):
    monkeypatch.setenv("_TOOLKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(number))
    assert toolkit()[1].split() == completions


@pytest.mark.parametrize(
    "words", ["preprocess", "tokenizer train", "convert", "train", "finetune", "score", "grid", "inspect"]
)
def test_help_of_a_command_loads_no_program(words):
    """It needs the settings' texts alone: under 0.3 s."""
    script = (
        f"import sys; sys.argv = ['toolkit', *{words.split()!r}, '--help']\n"
        "from toolkit.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'pyarrow', 'tokenizers', 'rich', 'tokenization'} & set(sys.modules)))"
    )
    done = run_apart("-c", script)
    assert done.stdout.splitlines()[-1] == "[]"
