"""`toolkit inspect` on runs and checkpoints; corpora have their own tests."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.runs import write_run
from toolkit.checkpoint import read
from toolkit.checkpoint.folders import remove_folder
from toolkit.checkpoint.manifest import manifest_bytes, read_manifest
from toolkit.core.errors import CheckpointError
from toolkit.inspection import verify
from toolkit.model import Encoder, model_settings
from toolkit.model.initialization import initialize_
from toolkit.run import load_run
from toolkit.run.identity import snapshot


@pytest.fixture
def inspect(monkeypatch, toolkit):
    def call(*words):
        monkeypatch.setenv("COLUMNS", "200")
        code, out, err = toolkit("inspect", *words)
        return code, [" ".join(line.split()) for line in out.splitlines()], err

    return call


@pytest.fixture
def run(tmp_path):
    """A run folder that stands at step 15 of 20, with checkpoints at 10 and 15, as a run would leave them."""
    run_file = write_run(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    overrides = ["model.vocab_size=97", "checkpoint.keep_every=10", "checkpoint.keep=1"]
    settings = load_run(str(run_file), overrides)
    (folder / "run.toml").write_text(run_file.read_text() + "\n[checkpoint]\nkeep_every = 10\nkeep = 1\n")
    encoder = Encoder(settings.model)
    initialize_(encoder, seed=0)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    for step in (10, 15):
        write_checkpoint(
            folder / "checkpoints", step, states=model_states(encoder), tokenizer_folder=tmp_path / "tokenizer",
            settings=snapshot(settings),
        )  # fmt: skip
    lines = [{"step": 0, "phase": 0, "tokens": 0, "eval_loss": {"clm": 5.0, "mlm": 6.0}}]
    for step in range(1, 16):
        line = {"step": step, "phase": int(step > 10), "loss": 5 - step / 10, "tokens": 500 * step}
        lines.append(line | {"tokens_per_second": 1234.5, "mfu": 0.25})
    lines[10]["eval_loss"] = {"clm": 4.0, "mlm": 5.5}
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(whole + '{"step": 16, "pha')
    return folder


def test_a_run_under_way(inspect, run):
    code, lines, err = inspect(run)
    assert (code, err) == (0, "")
    for expected in (
        "stands at step 15 of 20 (75%)",
        "tokens 7,500 without padding, 1,234 a second, MFU 25.0%",
        "1 clm 1 to 10 done 4.9000 4.0000",
        "2 mlm 11 to 20 at 15 3.9000 3.5000",
        "0 before the first 5.0000 6.0000",
        "10 phase 1, clm 4.0000 5.5000",
    ):
        assert expected in lines
    checkpoints = lines[lines.index("Checkpoints, newest first") + 2 :]
    assert [(line.split()[0], line.partition("ZeRO 2 ")[2]) for line in checkpoints[:2]] == [
        ("15", "one of the newest 1"),
        ("10", "always"),
    ]


def test_the_newest_checkpoint_in_object_storage(inspect, run):
    here, there = (
        inspect(f"{begin}{run}/checkpoints{end}") for begin, end in (("", "/step-00000015"), ("file://", ""))
    )
    assert there[0] == here[0] == 0
    shown, told = there[1][1:-1], there[1][-1]
    assert shown == here[1][1 : len(shown) + 1]
    assert told.startswith("Its files were not read")
    code, _, err = inspect(f"file://{run}/checkpoints", "--set", "data.windows=blocks")
    assert (code, "Leave it out" in err) == (2, True)


def test_a_fork_shows_what_was_before_it(inspect, run):
    """It leaves the run behind step 10, at the end of its first phase, and has made two steps."""
    fork = run.parent / "fork"
    fork.mkdir()
    source = run / "checkpoints" / "step-00000010"
    text = (run / "run.toml").read_text().replace(str(run), str(fork))
    (fork / "run.toml").write_text(f'{text}\n[fork]\nfrom = "{source}"\nstep = 10\n')
    lines = [{"step": 10, "phase": 1, "tokens": 5_000, "eval_loss": {"clm": 4.1, "mlm": 5.2}}]
    lines += [{"step": step, "phase": 1, "loss": 9 - step / 2, "tokens": 500 * step} for step in (11, 12)]
    lines[-1]["tokens_per_second"] = 100.0
    (fork / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, lines, err = inspect(fork)
    assert (code, err) == (0, "")
    for expected in (
        f"first weights {source}, a fork at step 10; the optimizer was kept",
        "stands at step 12 of 20 (20%); no checkpoint yet",
        "1 clm 1 to 10 done 4.9000 4.0000",
        "2 mlm 11 to 20 at 12 3.5000 3.0000",
        "0 before the first 5.0000 6.0000",
        "10 phase 1, clm 4.1000 5.2000",
        f"└── {fork} (no checkpoint yet), branched at step 10 <- this run",
    ):
        assert expected in lines


def test_a_checkpoint_between_phases(inspect, run):
    code, lines, err = inspect(run / "checkpoints" / "step-00000010")
    assert (code, err) == (0, "")
    assert "step 10 of 20; next is mlm, phase 2 of 2 (to step 20) at learning rate 0.01" in lines
    assert any("21,728 parameters, 18,624 without the head" in line for line in lines)
    assert "lm_head.weight 97 x 32" in lines
    assert "... 13 more" in lines
    assert lines[-1].endswith("files are as they were written (SHA-256).")
    assert not any(line.startswith("computed by") for line in lines)


def test_the_kernels_of_a_run_are_shown_where_it_wrote_them(inspect, run):
    folder = run / "checkpoints" / "step-00000010"
    manifest = read_manifest(folder).model_copy(update={"kernels": {"attention": "flash3", "blocks": "compiled"}})
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    assert "computed by attention flash3, compiled blocks" in inspect(folder)[1]


def test_a_damaged_checkpoint_is_named_in_both_views(inspect, run):
    folder = run / "checkpoints" / "step-00000015"
    (file,) = folder.glob("weights-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, lines, err = inspect(folder)
    assert code == 2
    assert f"{file} is damaged" in err
    assert not any("as they were written" in line for line in lines)
    (folder / "manifest.json").write_text("{}")
    code, lines, _ = inspect(run)
    assert code == 0
    assert any(line.startswith("15 ") and "damaged" in line for line in lines)


def test_a_file_that_is_cut_off_or_gone_shows_in_the_view_of_the_run(inspect, run):
    cut, gone = (next((run / "checkpoints" / name).glob("weights-*")) for name in ("step-00000015", "step-00000010"))
    cut.write_bytes(cut.read_bytes()[:-1])
    gone.unlink()
    code, lines, _ = inspect(run)
    assert code == 0
    assert any(line.startswith("15 ") and f"{cut.name} is damaged: expected" in line for line in lines)
    assert any(line.startswith("10 ") and f"{gone.name} cannot be read" in line for line in lines)


def test_verify_reads_runs_and_checkpoints(toolkit, run):
    def verify(folder):
        code, out, err = toolkit("verify", folder)
        return code, out.splitlines(), err

    older, newer = (run / "checkpoints" / name for name in ("step-00000010", "step-00000015"))
    code, lines, err = verify(run)
    assert (code, err) == (0, "")
    assert [line.partition(" is intact: ")[0] for line in lines] == [str(newer), str(older)]
    assert verify(run / "checkpoints")[:2] == (0, lines)
    assert verify(older)[:2] == (0, lines[1:])
    for folder in (older, newer):
        next(folder.glob("weights-*")).unlink()
    code, _, err = verify(run)
    assert code == 2
    assert all(f"{folder}/weights-" in err for folder in (older, newer))
    shutil.rmtree(run / "checkpoints")
    code, _, err = verify(run)
    assert code == 2
    assert f"nothing to verify in {run}" in err
    assert "preprocess" not in err


def test_verify_leaves_out_what_training_deletes_meanwhile(monkeypatch, run):
    older, newer = (run / "checkpoints" / name for name in ("step-00000010", "step-00000015"))
    hash_file, deleted = read.hash_file, list[Path]()

    def hash_and_delete(path, **given):
        while deleted:
            remove_folder(deleted.pop())
        return hash_file(path, **given)

    monkeypatch.setattr(read, "hash_file", hash_and_delete)
    deleted.append(older)  # while the newer one is read
    intact, gone = verify(run)
    assert gone == f"{older} was deleted meanwhile, as a run does with old checkpoints; it was not checked."
    assert intact.startswith(f"{newer} is intact: ")
    deleted.append(newer)  # while its own files are read
    with pytest.raises(CheckpointError, match=r"step-00000015 was deleted meanwhile(?s:.*)Run it again"):
        verify(run)


def test_a_checkpoint_without_a_schedule(inspect, tmp_path):
    """As one that was not trained here has none."""
    settings = model_settings("test", vocab_size=384)
    encoder = Encoder(settings)
    initialize_(encoder, seed=0)
    (tmp_path / "tokenizer").mkdir()
    folder = write_checkpoint(
        tmp_path / "made", 0, states=model_states(encoder), tokenizer_folder=tmp_path / "tokenizer", model=settings
    )
    code, lines, _ = inspect(folder)
    assert code == 0
    assert "step 0" in lines


def test_options_of_a_corpus_are_refused_for_a_run(inspect, run):
    code, _, err = inspect(run, "--set", "data.windows=blocks")
    assert code == 2
    assert "Leave it out" in err


def test_what_is_nothing_to_inspect_is_named_for_what_it_is(inspect, run, tmp_path):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "bare").mkdir()
    for place, found in (
        ("none", "it does not exist"),
        ("run/run.toml", "it is a file"),
        ("hub", "toolkit convert --from-hf"),
        ("run/checkpoints", "toolkit inspect "),
        ("bare", "it holds no corpus, run or checkpoint"),
    ):
        code, _, err = inspect(tmp_path / place)
        assert code == 2
        assert "nothing to inspect" in err
        assert found in err
        # Nobody who mistypes a run wants a corpus in its place.
        assert "--output" not in err


def test_a_run_with_first_weights_and_an_imported_model_say_so(inspect, run):
    with (run / "run.toml").open("a") as file:
        file.write('\n[init]\nfrom = "models/decoder"\noptimizer = "keep"\n')
    code, lines, _ = inspect(run)
    assert code == 0
    assert "first weights models/decoder; the optimizer was kept" in lines
    folder = run / "checkpoints" / "step-00000010"
    origin = {"model": "hub/decoder", "family": "llama"}
    manifest = read_manifest(folder).model_copy(update={"origin": origin, "has_moments": False})
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    code, lines, _ = inspect(folder)
    assert code == 0
    assert "first weights hub/decoder (llama)" in lines
    assert any(line.endswith("weights, no optimizer's moments, fp32") for line in lines)


def test_a_run_ahead_of_its_checkpoints_says_what_is_saved(inspect, run):
    with (run / "metrics.jsonl").open("a") as file:
        line = {"step": 18, "phase": 1, "loss": 3.0, "tokens": 9000, "tokens_per_second": 1.0}
        file.write("\n" + json.dumps(line) + "\n")
    _, lines, _ = inspect(run)
    assert "stands at step 18 of 20 (90%); saved up to 15" in lines
    shutil.rmtree(run / "checkpoints")
    _, lines, _ = inspect(run)
    assert "stands at step 18 of 20 (90%); no checkpoint yet" in lines


def test_metrics_of_any_bytes_are_passed_over(inspect, run):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\n\xff\x00\xfe\n")
    code, lines, err = inspect(run)
    assert (code, err) == (0, "")
    assert "stands at step 15 of 20 (75%)" in lines
