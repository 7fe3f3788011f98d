"""The job's own decisions: what is done again, what is reused, when it ends. Its programs are small or played."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.core.errors import SettingsError
from toolkit.execution.stages import locked
from toolkit.finetuning import FinetuningResult, get_task
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.run import load_run
from toolkit.run.data import open_run_data
from toolkit.run.identity import snapshot
from toolkit.run.load import declare_run, to_toml
from toolkit.run.settings import CompleteSettings
from toolkit.workflows.quickstart import stages
from toolkit.workflows.quickstart.program import run_quickstart
from toolkit.workflows.quickstart.steps import choose_steps


class _Programs:
    """Stands in for the programs: small corpora, checkpoints without training, scores without fine-tuning."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = tiny_tokenizer(folder / "tokenizer")
        self.source = folder / "text.jsonl"
        self.source.write_text("".join(json.dumps({"text": text}) + "\n" for text in sample_documents(60)))
        self.calls: list[str] = []
        self.exit_code, self.stops_early, self.seconds_of_step = 0, False, 0.1

    def prepare(self, data):
        self.calls.append("prepare")
        how = PreprocessSettings(tokenizer=str(self.tokenizer))
        for folder in (data.train, data.validation):
            if not (Path(folder) / "corpus.json").exists():
                preprocess([str(self.source)], Path(folder), settings=how)

    def train(self, source, overrides, *, ds_config, num_procs):
        assert (source, ds_config) == ("quickstart", "zero2")
        data = open_run_data(declare_run(source, overrides))
        folder, last_step = Path(data.run.settings.run.dir), data.run.plan.schedule.total_steps
        self.calls.append(f"train {folder.name}")
        folder.mkdir(parents=True, exist_ok=True)
        # The preset leaves it open: a start chooses it.
        settings = CompleteSettings.of(data.run.settings, precision="bf16")
        (folder / "run.toml").write_text(to_toml(settings))
        if self.exit_code or self.stops_early:
            return self.exit_code
        encoder = Encoder(data.run.settings.model)
        initialize_(encoder, 0)
        write_checkpoint(
            folder / "checkpoints",
            last_step,
            states=model_states(encoder),
            tokenizer_folder=self.tokenizer,
            num_parts=num_procs,
            settings=snapshot(settings),
        )
        with (folder / "metrics.jsonl").open("w") as file:
            for phase in data.run.plan.schedule.phases:
                for step in {0, phase.stop} if phase.index == 0 else {phase.stop}:
                    line = {"step": step, "phase": phase.index, "objective": phase.objective, "attention": "causal"}
                    more = {"eval_loss": {"clm": 6.0, "mlm": 6.0}} | (
                        {"loss": 6.0, "tokens_per_second": 1.0} if step else {}
                    )
                    file.write(json.dumps(line | more) + "\n")
        return 0

    def measure(self, settings, *, ranks):
        self.calls.append("measure")
        return choose_steps(settings.train.steps, self.seconds_of_step)

    def finetune_side_by_side(self, runs, *, logs):
        for run in runs:
            self._finetune(run)

    def _finetune(self, run):
        settings = get_task("sc").Settings.model_validate(run.settings)
        self.calls.append(f"finetune {run.initialization} {settings.seed}")
        assert all(path.is_file() for path in (*run.files.values(), run.encoder / "model.safetensors"))
        output = run.output
        output.mkdir(parents=True, exist_ok=True)
        (output / "predictions.jsonl").write_text("")
        (output / "model").mkdir(exist_ok=True)
        scores = {"accuracy": 0.8}
        result = FinetuningResult(
            task="sc", model=str(run.encoder), dataset="entity", protocol="standard", initialization=run.initialization,
            seed=settings.seed, learning_rate=settings.learning_rate, steps=settings.steps, metric="accuracy",
            validation=scores, test=scores, majority=0.6,
        )  # fmt: skip
        (output / "result.json").write_text(result.model_dump_json())


ALL = ["prepare", "measure", "train job", "finetune pretrained 0", *(f"finetune random {seed}" for seed in (0, 1, 2))]


@pytest.fixture
def programs(tmp_path, monkeypatch, undrawn):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    played = _Programs(tmp_path)
    monkeypatch.setattr(stages, "prepare_bundled_corpus", played.prepare)
    monkeypatch.setattr(stages, "train_run", played.train)
    monkeypatch.setattr(stages, "measure_choice", played.measure)
    monkeypatch.setattr(stages, "finetune_side_by_side", played.finetune_side_by_side)
    return played


def test_everything_is_made_once(programs, tmp_path, capsys):
    job = tmp_path / "job"
    assert run_quickstart(job) == 0
    assert programs.calls == ALL
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    made = {path.name for path in job.iterdir() if not path.name.startswith(".")}
    wanted = {
        "corpus",
        "checkpoints",
        "metrics.jsonl",
        "run.toml",
        "hf-encoder",
        "hf-decoder",
        "finetune",
        "report.html",
    }
    assert wanted <= made
    assert (job / "finetune" / "result.json").is_file()
    assert "bf16 with fp32 master weights" in (job / "report.html").read_text()
    out = capsys.readouterr().out
    assert [line[:3] for line in out.splitlines() if line[1:3] == "/5"] == [f"{number}/5" for number in range(1, 6)]
    assert out.count("done in") == 5
    assert f"Open {job / 'report.html'} in a browser." in out

    (job / "report.html").unlink()
    assert run_quickstart(job) == 0
    assert programs.calls == ALL
    assert (job / "report.html").is_file()
    out = capsys.readouterr().out
    assert out.count("finished before") == 5
    assert "All stages were finished before" in out


def test_what_is_damaged_is_made_again_and_nothing_else(programs, tmp_path):
    job = tmp_path / "job"
    run_quickstart(job)
    whole = (job / "hf-encoder" / "model.safetensors").read_bytes()
    shard = (job / "corpus" / "shard-00000.bin").read_bytes()
    (job / "hf-encoder" / "model.safetensors").write_bytes(b"")
    (job / "corpus" / "shard-00000.bin").write_bytes(shard[::-1])
    (job / "finetune" / "random-1" / "result.json").unlink()
    assert run_quickstart(job) == 0
    assert programs.calls == [*ALL, "prepare", *ALL[3:]]
    assert (job / "hf-encoder" / "model.safetensors").read_bytes() == whole
    assert (job / "corpus" / "shard-00000.bin").read_bytes() == shard


def test_the_twin_is_trained_when_asked_for_and_stays_in_the_report(programs, tmp_path):
    job = tmp_path / "job"
    run_quickstart(job)
    assert run_quickstart(job, comparison="mlm-only") == 0
    assert programs.calls == [*ALL, "train mlm-only"]
    settings = load_run(str(job / "mlm-only" / "run.toml"))
    assert [(phase.objective, phase.fraction) for phase in settings.schedule] == [("mlm", 1.0)]
    assert run_quickstart(job) == 0
    assert programs.calls == [*ALL, "train mlm-only"]
    assert "Does CLM first help?" in (job / "report.html").read_text()


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_run_that_ends_early_ends_the_job(programs, tmp_path, code):
    """Stopped (0), refused (2) or not finite (3): the code goes on to the caller, and nothing is converted."""
    programs.exit_code, programs.stops_early = code, True
    assert run_quickstart(tmp_path / "job") == code
    assert programs.calls == ALL[:3]
    programs.exit_code, programs.stops_early = 0, False
    assert run_quickstart(tmp_path / "job") == 0
    assert programs.calls == [*ALL[:3], *ALL[2:]]


def test_a_slow_cpu_trains_fewer_steps_and_says_so(programs, tmp_path, capsys):
    job, programs.seconds_of_step = tmp_path / "job", 0.34
    run_quickstart(job, comparison="mlm-only")
    for run in (job, job / "mlm-only"):
        assert load_run(str(run / "run.toml")).train.steps == 600
    sentence = "a training step takes 0.34 s on this CPU (measured): 900 steps would take the job over 6 minutes"
    assert sentence in capsys.readouterr().out
    assert sentence in (job / "report.html").read_text()


@pytest.mark.parametrize("lost", ["nothing", "stages.json", "corpus"])
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_that_has_begun_keeps_its_steps(programs, tmp_path, lost, is_finished):
    """Whatever another measurement would say, and whichever of the job's files is lost."""
    job, programs.seconds_of_step, programs.stops_early = tmp_path / "job", 0.4, not is_finished
    run_quickstart(job)
    if lost == "stages.json":
        (job / lost).unlink()
    elif lost == "corpus":
        (job / "corpus" / "shard-00000.bin").write_bytes(b"")
    programs.seconds_of_step, programs.stops_early = 0.01, False
    assert run_quickstart(job) == 0
    assert programs.calls.count("measure") == 1
    assert load_run(str(job / "run.toml")).train.steps == 600


def test_a_folder_of_an_older_version_keeps_all_steps(programs, tmp_path):
    """It has no record of a measurement."""
    job = tmp_path / "job"
    run_quickstart(job)
    records = json.loads((job / "stages.json").read_text())
    del records["prepare"]["facts"]
    (job / "stages.json").write_text(json.dumps(records))
    programs.seconds_of_step = 9.0
    assert run_quickstart(job) == 0
    assert programs.calls == ALL


def test_a_folder_with_another_run_is_refused(programs, tmp_path, monkeypatch):
    job = tmp_path / "job"
    run_quickstart(job)
    monkeypatch.setattr(
        stages, "declare_run", lambda source, changes: declare_run(source, [*changes, "train.steps=500"])
    )
    with pytest.raises(SettingsError, match=r"train\.steps: was \d+, now 500\n.*: remove or rename") as refused:
        run_quickstart(job)
    assert str(job) in str(refused.value)
    assert programs.calls == ALL


def test_a_second_quickstart_in_the_folder_is_refused(programs, tmp_path):
    with locked(tmp_path / "job"), pytest.raises(SettingsError, match=r"already running in .*job"):
        run_quickstart(tmp_path / "job")


def test_a_folder_that_cannot_be_made_is_refused(programs, tmp_path):
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


def test_the_environment_is_ready_before_libraries_read_it():
    """torch reads the one, the hub's client the other, when they are loaded."""
    module = "toolkit.workflows.quickstart.program"
    code = f"import sys, {module}; print(*sorted({{'torch', 'huggingface_hub'}} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout.strip() == ""
