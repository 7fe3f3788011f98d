"""The job's own decisions, and its page. Its programs are played: small corpora, no training, scores made up."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.cells import Score, grid_cells
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.report.pages.masked_words import MaskedWord, masked_words_section
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.quickstart import program, run_quickstart
from toolkit.quickstart.introduction import Findings
from toolkit.quickstart.steps import choose_steps
from toolkit.run import RunFolder, load_run
from toolkit.run.data import open_run_data
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_run, to_toml
from toolkit.run.settings import CompleteSettings
from toolkit.testing.corpora import write_token_corpus

ACCURACIES = {"pretrained": (0.76, 0.77, 0.78), "random": (0.65, 0.66, 0.70)}
MLM_AT_THE_END = {"job": 5.84, "mlm-only": 6.47}


class _Programs:
    def __init__(self, folder: Path) -> None:
        self.tokenizer = tiny_tokenizer(folder / "tokenizer")
        self.source = folder / "text.jsonl"
        self.source.write_text("".join(json.dumps({"text": text}) + "\n" for text in sample_documents(60)))
        self.calls: list[str] = []
        self.train_code = self.grid_code = 0
        self.stops_early, self.seconds_of_step = False, 0.1

    def prepare(self, data):
        self.calls.append("prepare")
        for folder in (data.train, data.validation):
            if not (Path(folder) / "corpus.json").exists():
                preprocess([str(self.source)], Path(folder), settings=PreprocessSettings(tokenizer=str(self.tokenizer)))

    def measure(self, settings, *, ranks):
        self.calls.append("measure")
        return choose_steps(settings.train.steps, self.seconds_of_step)

    def train(self, source, overrides, *, ds_config, num_procs):
        assert (source, ds_config) == ("quickstart", "zero2")
        data = open_run_data(declare_run(source, overrides))
        run, last = RunFolder(data.run.settings.run.dir), data.run.plan.schedule.total_steps
        self.calls.append(f"train {run.path.name}")
        run.path.mkdir(parents=True, exist_ok=True)
        # The preset leaves it open: a start chooses it.
        settings = CompleteSettings.of(data.run.settings, precision="bf16")
        run.settings_file.write_text(to_toml(settings))
        if self.train_code or self.stops_early:
            return self.train_code
        encoder = Encoder(data.run.settings.model)
        initialize_(encoder, 0)
        write_checkpoint(
            run.path / "checkpoints", last, states=model_states(encoder), tokenizer_folder=self.tokenizer,
            num_parts=num_procs, settings=snapshot(settings),
        )  # fmt: skip
        with run.metrics_file.open("w") as file:
            for step in (0, *(phase.stop for phase in data.run.plan.schedule.phases)):
                losses = {
                    "clm": 9.04 - 3.0 * step / last,
                    "mlm": 8.98 - (8.98 - MLM_AT_THE_END[run.path.name]) * step / last,
                }
                trained = (
                    {
                        "loss": 6.0,
                        "objective": "clm" if step < last else "mlm",
                        "tokens": step,
                        "tokens_per_second": 1.0,
                    }
                    if step
                    else {}
                )
                file.write(json.dumps({"step": step, "eval_loss": losses} | trained) + "\n")
        return 0

    def run_grid(self, grid):
        self.calls.append("grid")
        assert all(path.is_file() for task in grid.task for path in task.files.values())
        folder, scores = GridFolder(grid.grid.dir), []
        for cell in grid_cells(grid):
            accuracy = {"accuracy": ACCURACIES[cell.model][cell.seed]}
            scores.append(Score(**cell._asdict(), metric="accuracy", validation=accuracy, test=accuracy, majority=0.63))
            folder.place(cell).path.mkdir(parents=True, exist_ok=True)
            folder.place(cell).result_file.write_text(scores[-1].model_dump_json())
        rates = {model: {"entity": {"learning_rate": scores[0].learning_rate}} for model in ACCURACIES}
        folder.write_results(scores, rates)
        return self.grid_code


@pytest.fixture
def programs(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    played = _Programs(tmp_path)
    monkeypatch.setattr(program, "prepare_bundled_corpus", played.prepare)
    monkeypatch.setattr(program, "train_run", played.train)
    monkeypatch.setattr(program, "measure_choice", played.measure)
    monkeypatch.setattr(program, "run_grid", played.run_grid)
    # Drawing is most of the time that a page takes.
    monkeypatch.setattr("toolkit.experiments.report.pages.html.draw", lambda *_: b"<svg/>")
    monkeypatch.setattr("toolkit.experiments.report.program.draw", lambda *_: b"")
    return played


def _page(job: Path) -> str:
    text = re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", "", (job / "report.html").read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", text.replace("&amp;", "&"))


def test_the_job_leaves_what_it_promises(programs, tmp_path, capsys):
    job = tmp_path / "job"
    assert run_quickstart(job) == 0
    assert programs.calls == ["prepare", "measure", "train job", "grid"]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    wanted = "corpus checkpoints metrics.jsonl run.toml hf-encoder hf-decoder finetune/result.json report.html"
    assert [name for name in wanted.split() if not (job / name).exists()] == []
    out = capsys.readouterr().out
    assert re.findall(r"^(\d)/5  ", out, flags=re.MULTILINE) == list("12345")
    assert "held-out MLM loss: 5.84 (before training 8.98, unigram baseline" in out
    assert "test accuracy: 77.0% (random twins 67.0%, most frequent label 63.0%)" in out
    assert f"Open {job / 'report.html'} in a browser." in out
    # Each program knows what it has finished; the number of steps stays.
    assert run_quickstart(job) == 0
    assert programs.calls[4:] == ["prepare", "train job", "grid"]


def test_the_page_says_what_the_quickstart_is_for(programs, tmp_path):
    """One deviation of 1,417 answers at 77 % is 1.1 points; the losses fall in straight lines."""
    job = tmp_path / "job"
    run_quickstart(job)
    page = _page(job)
    for words in (
        "not a reproduction of the paper",
        "450 steps of CLM, then 450 steps of MLM",
        "bf16 with fp32 master weights",
        "DeepSpeed, ZeRO-2, 2 ranks",
        "+10.0 points over the mean of the twins (67.0%)",
        "+14.0 over the most frequent label",
        "about 1.1 points",
        "She was born in New York City.",
        "toolkit train quickstart --num-procs 2 --set train.steps=3600",
        "toolkit quickstart --compare",
        "checkpoints/step-00000450",
        "CC BY-SA",
        "by toolkit quickstart",
    ):
        assert words in page, words
    html = (job / "report.html").read_text()
    rows = dict(re.findall(r"<tr[^>]*><th>([^<]*)</th>(<td class=\"right.*?)</tr>", html))
    losses = {name: re.findall(r">([\d.]+)<", cells) for name, cells in rows.items()}
    assert losses["before the first step"] == ["9.04", "8.98"]
    assert losses["after phase 1, CLM (step 450)"] == ["7.54", "7.41"]
    assert losses["after phase 2, MLM (step 900)"] == ["6.04", "5.84"]
    assert len(losses["unigram baseline"]) == 2
    titles = re.findall(r"<h2 id=\"\w+\">(.*?)</h2>", html)
    assert titles[:4] == ["One run, two objectives", "Masked words", "Fine-tuning", "What to do next"]
    assert not re.search(r"(src|href)=\"(?!data:|#|tables/|figures/|finetune/|https://arxiv)", html)


def test_a_comparison_is_trained_when_asked_for_and_stays_in_the_report(programs, tmp_path, monkeypatch):
    job = tmp_path / "job"
    assert run_quickstart(job, comparison="mlm-only") == 0
    assert programs.calls == ["prepare", "measure", "train job", "train mlm-only", "grid"]
    settings = load_run(str(job / "mlm-only" / "run.toml"))
    assert [(phase.objective, phase.fraction) for phase in settings.schedule] == [("mlm", 1.0)]
    assert "ends lower on masked tokens of held-out text: 5.84 against 6.47 nats, a difference of 0.63" in _page(job)
    monkeypatch.setitem(MLM_AT_THE_END, "mlm-only", 5.0)
    assert run_quickstart(job) == 0
    assert "does not end lower" in _page(job)


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_run_that_ends_early_ends_the_job(programs, tmp_path, code):
    """Stopped (0), refused (2) or not finite (3): the code goes on to the caller, and nothing is converted."""
    programs.train_code, programs.stops_early = code, True
    assert run_quickstart(tmp_path / "job") == code
    assert programs.calls == ["prepare", "measure", "train job"]


def test_a_cell_that_fails_ends_the_job(programs, tmp_path):
    programs.grid_code = 1
    assert run_quickstart(tmp_path / "job") == 1
    assert not (tmp_path / "job" / "report.html").exists()


def test_a_slow_cpu_trains_fewer_steps_and_says_so(programs, tmp_path, capsys):
    """Once they are chosen, whatever another measurement would say."""
    job, programs.seconds_of_step, programs.stops_early = tmp_path / "job", 0.34, True
    run_quickstart(job)
    sentence = "a training step takes 0.34 s on this CPU (measured): 900 steps would take the job over 6 minutes"
    assert sentence in capsys.readouterr().out
    programs.seconds_of_step, programs.stops_early = 0.01, False
    run_quickstart(job, comparison="mlm-only")
    assert [load_run(str(run / "run.toml")).train.steps for run in (job, job / "mlm-only")] == [600, 600]
    assert sentence in _page(job)


def test_losses_of_a_unigram_model(tmp_path):
    """Of 100 training tokens 60 are id 3, 39 are id 4; held-out text is one segment of ids 3 4 3 4 and so on.

    With one added to each of five counts, ids 3 and 4 have shares 61/105 and 40/105. CLM predicts every token of the
    row but the first, 7 of them id 4 and 6 of them id 3.
    """
    ids = {"eos": 0, "pad": 1, "mask": 2}
    train, held_out = np.array([3] * 60 + [4] * 39 + [0]), np.array([3, 4] * 7)
    corpus = write_token_corpus(tmp_path / "train", [train], vocabulary_size=5, **ids)
    validation = write_token_corpus(tmp_path / "validation", [held_out], vocabulary_size=5, **ids)
    places = [f'data.train="{corpus}"', f'data.validation="{validation}"', "model.vocab_size=5", 'precision="fp32"']
    run = RunFolder(tmp_path)
    settings = load_run("quickstart", [*places, f'run.dir="{tmp_path}"', "data.sequence_length=16"])
    run.settings_file.write_text(to_toml(settings))
    losses = Findings([run], [], steps_reason="", max_difference=0.0).unigram
    assert losses["clm"] == pytest.approx(-(6 * math.log(61 / 105) + 7 * math.log(40 / 105)) / 13)
    assert -math.log(61 / 105) <= losses["mlm"] <= -math.log(40 / 105)


def test_masked_words_are_escaped_and_counted():
    html = masked_words_section(
        [
            MaskedWord("She", " was", " born <in> London.", ((" was", 0.5), (" is", 0.002))),
            MaskedWord("He", " had", " a dog.", ((" was", 0.4), (" <b>", 0.1))),
        ]
    )
    assert "the masked word in 1 of 2" in html
    assert ("<b>" in html, "&lt;b&gt;" in html, "&lt;in&gt;" in html, "&lt;1%" in html) == (False, True, True, True)


def test_a_second_quickstart_in_the_folder_is_refused(tmp_path, monkeypatch):
    refused = []

    def again(job):
        with pytest.raises(SettingsError, match=r"already running in .*job"):
            run_quickstart(tmp_path / "job")
        refused.append(job)
        return 0

    monkeypatch.setattr(program.Job, "run", again)
    run_quickstart(tmp_path / "job")
    assert refused


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="could not write to"):
        run_quickstart(tmp_path / "file" / "job")


@pytest.mark.slow
def test_ctrl_c_leaves_with_130_and_no_traceback(tmp_path):
    """The real command, interrupted once while it prepares and once while ranks start."""
    for stage, seconds in (("1/5", 1.0), ("2/5", 4.0)):
        process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.cli", "quickstart"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A shell that starts the suite in the background has it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert process.stdout is not None
        while not process.stdout.readline().startswith(stage):
            assert process.poll() is None
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert (process.returncode, "Traceback" in err) == (130, False), err
        # What was interrupted says how it continues.
        assert re.fullmatch(r"interrupted.*; the same command \w.*", err.splitlines()[-1]), err


def test_the_environment_is_ready_before_libraries_read_it():
    """torch reads the one, the hub's client the other, when they are loaded."""
    code = "import sys, toolkit.quickstart; print(*sorted({'torch', 'huggingface_hub'} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout.strip() == ""
