"""Scores of checkpoints: those of a computation by hand, whoever wrote the files; and what is refused."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from seqeval.metrics import f1_score
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.runs import write_run
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.conversion import to_hf
from toolkit.core.errors import SettingsError
from toolkit.model import model_settings
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.run import RunFolder, load_run
from toolkit.run.load import to_toml
from toolkit.testing.models import MODEL_OPTIONS
from toolkit.workflows import probe
from toolkit.workflows.probe import check_probe, probe_checkpoint
from toolkit.workflows.train import show_run


def _sentences(path: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of 1 to 12 sentences, labelled by a word that some of them hold, and written as a table."""
    texts = [" ".join(document.split()) for document in sample_documents(count, seed=seed)]
    rows = [(text, "boats" if "boats" in text else "none") for text in texts]
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return rows


@pytest.fixture(scope="module")
def write_run_folder(tmp_path_factory):
    """Writes a run with a probe and two checkpoints of equal weights, one of a single writer and one of three."""
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))

    def write(folder: Path, kind: str, *, options: str | None = None, **files: Path) -> RunFolder:
        changes = {} if options is None else MODEL_OPTIONS[options]
        model = model_settings("test", **{"vocab_size": 384, "initializer_range": 0.15} | changes)
        encoder = Encoder(model)
        initialize_(encoder, seed=3)
        named = [f"probe.{split}={path}" for split, path in files.items()]
        settings = load_run(str(write_run(folder)), ["probe.task=boats", f"probe.kind={kind}", *named])
        run = RunFolder(folder / "run")
        run.path.mkdir()
        run.settings_file.write_text(to_toml(settings))
        for step, num_parts in ((10, 1), (20, 3)):
            states = model_states(encoder)
            write_checkpoint(
                run.checkpoints, step, states=states, tokenizer_folder=tokenizer, model=model, num_parts=num_parts
            )
        return run

    return write


def _probed(folder: Path, write_run_folder, options: str | None = None):
    """A run with a probe of texts, and the labelled texts."""
    train, test = _sentences(folder / "train.tsv", 80, seed=1), _sentences(folder / "test.tsv", 120, seed=2)
    run = write_run_folder(folder, "sc", options=options, train=folder / "train.tsv", test=folder / "test.tsv")
    return run, train, test


@pytest.fixture(scope="module")
def probed(tmp_path_factory, write_run_folder):
    return _probed(tmp_path_factory.mktemp("probe"), write_run_folder)


def _features(folder: Path, rows: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Means of the stock model's last hidden states, one text at a time."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        vectors = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text, _ in rows]
    return torch.stack(vectors).double().numpy(), np.array([label for _, label in rows])


@pytest.mark.parametrize("options", [None, "modernbert"])
def test_the_score_is_that_of_a_direct_computation(probed, write_run_folder, tmp_path, options):
    run, train, test = probed if options is None else _probed(tmp_path, write_run_folder, options)
    to_hf(run.checkpoint(10), tmp_path / "hf")
    (vectors, labels), (unseen, truth) = (_features(tmp_path / "hf", rows) for rows in (train, test))
    mean, deviation = vectors.mean(axis=0), vectors.std(axis=0)
    regression = LogisticRegression(max_iter=1000).fit((vectors - mean) / deviation, labels)
    expected = float((regression.predict((unseen - mean) / deviation) == truth).mean())
    scores = probe_checkpoint(str(run.path), 10)
    assert scores["score"] == scores["accuracy"] == pytest.approx(expected, abs=1e-12)
    majority = max(np.unique(truth, return_counts=True)[1]) / len(truth)
    assert majority < expected < 1


def _tagged(path: Path, count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Sentences whose subjects and river are entities, and written as CoNLL columns."""
    tags = {"miller": "B-PER", "fox": "B-PER", "sister": "B-PER", "captain": "B-PER", "river": "B-LOC"}
    texts = [document.split(".")[0].split() for document in sample_documents(count, seed=seed)]
    sentences = [[(word, tags.get(word.strip(";,"), "O")) for word in words] for words in texts]
    path.write_text("\n".join("".join(f"{word} {tag}\n" for word, tag in rows) for rows in sentences))
    return sentences


def _word_vectors(folder: Path, sentences: list[list[tuple[str, str]]]) -> tuple[np.ndarray, np.ndarray]:
    """Means over the tokens of each word, found by the characters that a token stands for."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    vectors, tags = [], []
    for sentence in sentences:
        encoded = tokenizer(" ".join(word for word, _ in sentence), return_tensors="pt", return_offsets_mapping=True)
        (offsets,) = encoded.pop("offset_mapping").tolist()
        with torch.no_grad():
            (hidden_SD,) = encoder(**encoded).last_hidden_state
        end = -1
        for word, tag in sentence:
            begin, end = end, end + 1 + len(word)
            # A blank in front of a word goes with its first letters, and is no part of it alone.
            is_part = [begin <= first and begin + 1 < last <= end for first, last in offsets]
            vectors.append(hidden_SD[is_part].mean(0))
            tags.append(tag)
    return torch.stack(vectors).double().numpy(), np.array(tags)


def test_the_score_of_words_is_that_of_a_direct_computation(tmp_path, write_run_folder):
    files = {split: tmp_path / f"{split}.conll" for split in ("train", "test")}
    train, test = _tagged(files["train"], 40, seed=1), _tagged(files["test"], 60, seed=2)
    run = write_run_folder(tmp_path, "tc", **files)
    to_hf(run.checkpoint(10), tmp_path / "hf")
    (vectors, tags), (unseen, _) = (_word_vectors(tmp_path / "hf", sentences) for sentences in (train, test))
    mean, deviation = vectors.mean(axis=0), vectors.std(axis=0)
    regression = LogisticRegression(max_iter=1000).fit((vectors - mean) / deviation, tags)
    answers = iter(regression.predict((unseen - mean) / deviation).tolist())
    predicted = [[next(answers) for _ in sentence] for sentence in test]
    expected = f1_score([[tag for _, tag in sentence] for sentence in test], predicted)
    scores = probe_checkpoint(str(run.path), 10)
    assert scores["score"] == scores["f1"] == pytest.approx(expected, abs=1e-12)
    assert 0.2 < expected < 1


def test_the_number_of_writers_is_no_part_of_it(probed):
    run, *_ = probed
    assert probe_checkpoint(str(run.path), 10) == probe_checkpoint(str(run.path), 20)


def test_steps_bound_the_optimizer(probed):
    run, *_ = probed
    text = run.settings_file.read_text()
    one = RunFolder(run.path.parent / "one")
    one.path.mkdir()
    one.checkpoints.symlink_to(run.checkpoints)
    one.settings_file.write_text(text.replace("steps = 1000", "steps = 1"))
    assert one.settings_file.read_text() != text
    assert probe_checkpoint(str(one.path), 10)["score"] < probe_checkpoint(str(run.path), 10)["score"]


@pytest.mark.costs(10)
def test_the_program_prints_the_score_at_the_lowest_priority_and_ends_with_its_parent(probed):
    run, *_ = probed
    command = [sys.executable, "-m", "toolkit.workflows.probe", str(run.path), "10"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while psutil.Process(started.pid).nice() != 19:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Beside two busy processes it would take minutes there; only root may take it back.
    with contextlib.suppress(psutil.AccessDenied):
        psutil.Process(started.pid).nice(0)
    gone = subprocess.Popen(["true"])
    gone.wait()
    other = [*command, "--parent", str(gone.pid)]
    orphan = subprocess.run(other, capture_output=True, text=True, timeout=600, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, "")
    printed, _ = started.communicate(timeout=600)
    assert json.loads(printed.splitlines()[-1]) == probe_checkpoint(str(run.path), 10)


def test_a_mistake_is_one_message(probed, monkeypatch, capsys):
    run, *_ = probed
    monkeypatch.setattr(sys, "argv", ["probe", str(run.path), "7"])
    monkeypatch.setattr(os, "nice", lambda increment: None)
    assert probe.main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("step-00000007")) == ("", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tname\nt4\ta\n", "no column 'label'"),
        ("text\tlabel\nt4\tc\n", "the label 'c' does not occur in the training file"),
        ("text\tlabel\n", "no examples"),
    ],
)
def test_examples_that_do_not_fit_are_refused_before_training(tmp_path, content, message):
    (tmp_path / "train.tsv").write_text("text\tlabel\nt4\ta\nt5\tb\n")
    (tmp_path / "test.tsv").write_text(content)
    files = [f"probe.{split}={tmp_path / f'{split}.tsv'}" for split in ("train", "test")]
    overrides = ["probe.task=x", "probe.kind=sc", *files]
    run_file = str(write_run(tmp_path))
    with pytest.raises(SettingsError, match=message) as found:
        check_probe(load_run(run_file, overrides))
    assert str(found.value).startswith(f"[probe] of the run: {tmp_path / 'test.tsv'}")
    with pytest.raises(SettingsError, match=message):
        show_run(run_file, overrides, ds_config=None, num_procs=1)
