"""What a run will take, against counts by hand."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind
from toolkit.launching.train import show_run
from toolkit.model.encoder import Encoder
from toolkit.model.flops import training_flops
from toolkit.run import division, run_presets
from toolkit.run import forecast as forecasts
from toolkit.run.data import open_run_data
from toolkit.run.division import divide_run, divide_smaller, fit_main_memory, main_memory
from toolkit.run.forecast import Machines, forecast, forecast_here
from toolkit.run.load import declare_run


def test_parameters_steps_and_disk(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), ["checkpoint.every=4", "checkpoint.keep_every=5"])
    data = open_run_data(declared)
    text = "\n".join(forecast(data.run, data=data))
    parameters = sum(parameter.numel() for parameter in Encoder(data.run.settings.model).parameters())
    assert f"model: {parameters:,} parameters" in text
    assert "tokens: 10,240 positions in 20 steps, 512 a step" in text
    assert "steps 1 to 10: clm, 10 steps\nsteps 11 to 20: mlm, 10 steps" in text
    # Of 4, 5, 8, 10, 12, 15, 16, 20: the newest two, and 5, 10, 15, 20.
    assert "5 checkpoints kept at the end" in text
    light = declare_run(str(tmp_path / "run.toml"), ["checkpoint.keep_every=5", "checkpoint.keep_weights_only=true"])
    assert "4 checkpoints kept at the end, 2 of them as weights alone" in "\n".join(forecast(light, data=None))


def test_epochs_are_steps_before_the_start(tmp_path):
    """Of a blend too, and behind a batch-size warm-up of two steps of 8 rows."""
    path = str(write_run(tmp_path))
    run = open_run_data(declare_run(path))
    alone, folders = run.rows.num_rows, (tmp_path / "corpus", tmp_path / "validation")
    blend = ", ".join(f"{{path='{folder}', weight=1}}" for folder in folders)
    both = alone + run.validation_rows[""].num_rows
    warmup = "global_batch_rows=16, batch_warmup_rows=8, batch_warmup_tokens=1024"
    overrides = [
        f"schedule.0={{objective='clm', epochs=1.5, {warmup}}}",
        f"schedule.1={{objective='mlm', epochs=1, data={{train=[{blend}]}}}}",
    ]
    declared = declare_run(path, overrides)
    told = [
        "repeated more than 4 times"
        in open_run_data(declare_run(path, [overrides[0].replace("1.5", epochs)])).describe()
        for epochs in ("1.5", "4.5")
    ]
    assert told == [False, True]
    steps = [phase.steps for phase in declared.settings.schedule]
    assert steps == [2 + math.ceil((math.ceil(1.5 * alone) - 16) / 16), math.ceil(both / 8)]


def test_arithmetic_is_that_of_the_batches(tmp_path):
    """Counted over all rows of one epoch, of which the forecast looks at the first 32."""
    overrides = ["data.windows=blocks", "schedule=[{objective='clm', steps=4}]", "lr.decay_steps=1"]
    data = open_run_data(declare_run(str(write_run(tmp_path)), overrides))
    length = data.rows.sequence_length
    rows = data.rows.read(np.arange(4), np.zeros(4, np.int64))
    assert data.objectives["clm"].attention is AttentionKind.CAUSAL
    assert (rows.segments_BS == 1).all()
    model = data.run.settings.model
    pairs = model.num_hidden_layers * length * (length + 1) // 2
    expected = training_flops(model, tokens=length, targets=length - 1, attended_pairs=pairs) / length
    assert f"model FLOPs: {expected:.3g} per token" in forecast(data.run, data=data)[1]


def test_a_ramp_counts_with_its_mean(tmp_path):
    """Four stairs from 0.2 to 0.8, whose middle is at none of them, against a ratio of one half."""
    overrides = ["data.windows=blocks", "schedule=[{objective='mlm', steps=4}]", "lr.decay_steps=1"]
    ramp = "objectives.mlm.mask_ratio={start=0.2,stop=0.8,shape='steps',steps=4}"
    half = declare_run(str(write_run(tmp_path)), [*overrides, "objectives.mlm.mask_ratio=0.5"])
    stairs = declare_run(str(tmp_path / "run.toml"), [*overrides, ramp])
    assert stairs.targets_per_position("mlm") == half.targets_per_position("mlm") == 0.5
    rows = declare_run(str(tmp_path / "run.toml"), [*overrides, "schedule.0.objective=diffusion"])
    assert rows.targets_per_position("diffusion") == 0.5005
    per_token = [
        float(re.search(r"model FLOPs: (\S+) per token", forecast(data.run, data=data)[1])[1])
        for data in map(open_run_data, (half, stairs))
    ]
    assert per_token[1] == pytest.approx(per_token[0], rel=0.01)


def test_a_preset_is_shown_without_its_corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in sorted({*run_presets()} - {"adapt", "detour"}):
        show_run(name, [], ds_config=None, num_procs=None)
        said = capsys.readouterr().out
        assert "does not exist yet" in said
        if name == "610m":
            assert "# model: 755,625,600 parameters, 607,874,688 without the head" in said
            assert "# tokens: 99,090,432,000 positions in 42,000 steps, 2,359,296 a step" in said
            assert "# learning rate: peak 0.0005, 2,000 steps of warm-up, 2,000 of linear decay to 0" in said
        if name.startswith("modernbert"):
            # The decay is the last phase, in which full layers alone have another base.
            total, decay, size = {
                "modernbert-base": ("446,322", "10,597", "149,655,232"),
                "modernbert-large": ("404,504", "9,909", "395,881,664"),
            }[name]
            assert f"# model: {size} parameters" in said
            assert f"to {total}: mlm, {decay} steps, " in said
            assert f"to step {total}: peak" in said
            assert f", 0 steps of warm-up, {decay} of 1-sqrt decay to 0" in said
            assert "local_rope_theta = 10000.0" in said
            assert said.count("rope_theta 160000.0, max_position_embeddings 8192") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "ds_config", "message"),
    [
        (["parallel.pp=64"], None, r"parallel\.pp=64\) needs a block for each stage"),
        (["parallel.tp=5"], None, r"parallel\.tp=5\) gives each rank"),
        (["parallel.pp=2"], "zero2", r"ZeRO stage 2"),
    ],
)
def test_a_layout_that_cannot_run_is_refused_without_a_corpus(tmp_path, monkeypatch, overrides, ds_config, message):
    monkeypatch.chdir(tmp_path)
    ranks = 40 if overrides == ["parallel.tp=5"] else 64
    overrides = [*overrides, "train.global_batch_rows=1536"]
    with pytest.raises(SettingsError, match=message):
        show_run("3b", overrides, ds_config=ds_config, num_procs=ranks)


def test_hours_and_jobs_by_hand():
    """989 TFLOP/s at 40 % are 1.424e18 FLOPs an hour."""
    planned = Machines("h100", 0.4, num_ranks=4, job_hours=5.0)
    assert planned.describe(40 * 989e12 * 0.4 * 3600) == (
        "40 GPU hours at 40% of 989 TFLOP/s (h100), 10 hours on 4 ranks: 2 jobs of at most 5 hours"
    )
    assert planned.describe(2607 * 989e12 * 0.4 * 3600).startswith("2,607 GPU hours at 40%")


def test_the_share_of_each_phase_is_told(tmp_path, capsys):
    overrides = ["schedule.1.global_batch_rows=16", "train.micro_batch_rows=4"]
    show_run(str(write_run(tmp_path)), overrides, ds_config=None, num_procs=2, device="h100", mfu=0.4)
    told = capsys.readouterr().out
    assert "# phase 1: 8 rows a step = 4 a micro-batch x 1 micro-batch x 2 data-parallel ranks" in told
    assert "# phase 2: 16 rows a step = 4 a micro-batch x 2 micro-batches x 2 data-parallel ranks" in told
    assert "GPU hours at 40% of 989 TFLOP/s (h100)" in told
    assert "GB of token ids on disk" in told


def test_a_cpu_with_little_memory_takes_smaller_micro_batches(tmp_path, monkeypatch, capfd):
    """Where none are set; the ranks do what the dry run says, also resumed on a larger one, and the losses stay."""
    path = write_run(tmp_path)
    path.write_text(path.read_text().replace("micro_batch_rows = 4", ""))
    overrides = ("train.steps=2", "schedule.0.steps=1", "schedule.1.steps=1", "lr.warmup_steps=1", "lr.decay_steps=1")
    _, expected = RunCase(str(path), overrides=overrides)()
    run = declare_run(str(path), overrides)
    whole = divide_run(run, ds_config="zero0", num_ranks=1)
    needed = main_memory(run, divide_smaller(run, whole))
    monkeypatch.setattr(division, "total_memory", lambda: int(needed / 0.85) + 2)
    fitted = fit_main_memory(run, whole, ranks_here=1)
    assert (whole.batch.micro_batch_rows, fitted.batch.micro_batch_rows) == (8, 4)
    small = RunCase(str(path), overrides=(*overrides, f"run.dir={tmp_path / 'small'}"), until=1)
    small()
    assert "train.micro_batch_rows 4: with 8, a rank would take" in capfd.readouterr().out
    monkeypatch.setattr(division, "total_memory", lambda: 2**50)
    _, lines = replace(small, until=None)()
    assert "train.micro_batch_rows 4: as before" in capfd.readouterr().out
    assert json.loads((tmp_path / "small/deepspeed.json").read_text())["train_micro_batch_size_per_gpu"] == 4
    assert [line["loss"] for line in lines[1:]] == pytest.approx([line["loss"] for line in expected[1:]], rel=1e-5)
    given = declare_run(str(path), [*overrides, "train.micro_batch_rows=8"])
    assert fit_main_memory(given, whole, ranks_here=1) is whole


def test_memory_and_time_on_this_cpu(tmp_path, monkeypatch):
    """By hand: 1e12 FLOPs at 1e8 FLOP/s on each of two ranks are 1.4 hours."""
    run = declare_run(str(write_run(tmp_path)))
    monkeypatch.setattr(forecasts, "timed_speed", lambda threads, precision: 1e8)
    divided = divide_run(run, ds_config="zero0", num_ranks=2)
    memory, time = forecast_here(run, divided, num_ranks=2, flops=1e12)
    assert memory.startswith("memory per rank, on this CPU: about 1 GB; ")
    assert time == "time: about 1.39 hours on this CPU, at the 0.0001 TFLOP/s of a small step"
