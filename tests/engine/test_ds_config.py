"""The DeepSpeed JSON: what ships loads, what contradicts the run is refused with the numbers."""

import json

import pytest

from toolkit.core.errors import SettingsError
from toolkit.engine.ds_config import (
    check_parallel,
    choose_ds_config,
    read_ds_config,
    resolve_ds_config,
    shipped_ds_configs,
    zero_stage,
)
from toolkit.model import model_settings
from toolkit.parallel.memory import largest_parameter
from toolkit.parallel.topology import ParallelSettings, batch_plan

_BATCH = batch_plan(24, 3, data_parallel=2)
_OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


def _resolve(config, precision="bf16"):
    return resolve_ds_config(
        config, batch=_BATCH, grad_clip=1.0, precision=precision, source="file.json", largest_parameter=8
    )


def _write(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_shipped_files():
    assert shipped_ds_configs() == ("pipeline", "zero0", "zero1", "zero2", "zero3")


@pytest.mark.parametrize(("name", "stage"), [("pipeline", 1), *((f"zero{stage}", stage) for stage in range(4))])
def test_a_shipped_file_is_filled_in(name, stage):
    config = read_ds_config(name)
    assert zero_stage(config) == stage
    resolved = _resolve(config, precision="fp32" if stage == 0 else "bf16")
    assert resolved["train_batch_size"] == 24
    assert resolved["train_micro_batch_size_per_gpu"] == 3
    assert resolved["gradient_accumulation_steps"] == 4
    assert resolved["gradient_clipping"] == 1.0
    assert resolved["bf16"] == {"enabled": stage != 0, "check_grad_overflow": True, "immediate_grad_update": True}
    assert resolved["disable_python_gc"] is True
    assert resolved["data_types"] == {"grad_accum_dtype": "fp32"}
    assert resolved["communication_data_type"] == "fp32"
    assert resolved["gradient_allreduce_op"] == "mean"
    assert resolved["managed_gradient_accumulation"] is True
    assert "auto" not in json.dumps(resolved)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "pipeline"])
def test_a_bucket_holds_the_largest_parameter(name, tmp_path):
    """The 210m's embedding is 98,500,608 numbers, and DeepSpeed's own bucket larger than the whole model."""
    shared = {"batch": batch_plan(8, 4, data_parallel=1), "grad_clip": 1.0, "precision": "bf16", "source": name}
    largest = largest_parameter(model_settings("210m", vocab_size=128_256), 1)
    assert largest == 98_500_608
    zero = resolve_ds_config(read_ds_config(name), **shared, largest_parameter=largest)["zero_optimization"]
    assert zero["reduce_bucket_size"] == largest
    # A number in a file stays.
    own = _write(tmp_path, {"zero_optimization": {"stage": 2, "reduce_bucket_size": 7}})
    zero = resolve_ds_config(read_ds_config(own), **shared, largest_parameter=largest)["zero_optimization"]
    assert zero["reduce_bucket_size"] == 7


def test_sizes_may_be_written_as_in_deepspeed(tmp_path):
    """ "auto", as transformers' pages have it, stands for the default."""
    sizes = {"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 0}
    read = read_ds_config(_write(tmp_path, {"zero_optimization": {"stage": 3} | sizes}))
    assert read["zero_optimization"] == {"stage": 3} | sizes
    zero = _resolve(read | {"zero_optimization": {"stage": 3, "reduce_bucket_size": None}})["zero_optimization"]
    assert zero["reduce_bucket_size"] == 8


def test_a_shipped_file_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_ds_config("ds_configs/zero1.json") == read_ds_config("zero1")


def test_deepspeed_itself_accepts_every_shipped_file():
    from deepspeed.runtime.config import DeepSpeedConfig

    for name in shipped_ds_configs():
        resolved = resolve_ds_config(
            read_ds_config(name),
            batch=batch_plan(8, 4, data_parallel=1),
            grad_clip=1.0,
            precision="fp32" if name == "zero0" else "bf16",
            source=name,
            largest_parameter=8,
        )
        assert DeepSpeedConfig(resolved).zero_config.stage == zero_stage(resolved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"scheduler": {"type": "WarmupLR"}}, "block 'scheduler'"),
        ({"zero_optimization": {"stage": True}}, "got true"),
        ({"zero_optimization": None}, "zero_optimization in .* got null"),
        ({"bf16": True}, "bf16 in .* got true"),
        ({"data_types": "x"}, 'data_types in .* got "x"'),
        ({"timers": []}, "timers in .* got \\[\\]"),
        ({"steps_per_print": "x"}, 'steps_per_print in .*: expected an integer >= 1 or null, got "x"'),
        ({"steps_per_print": 0}, "steps_per_print in .* got 0"),
        ({"steps_per_print": 2e3}, "steps_per_print in .* got 2000.0"),
        *(
            ({"zero_optimization": {"reduce_bucket_size": value}}, r'reduce_bucket_size .* >= 1 or "auto", got ')
            for value in (0, -1, 7.5, True, "5e8", float("inf"))
        ),
        ({"zero_optimization": {"stage3_max_live_parameters": "x"}}, 'stage3_max_live_parameters .* got "x"'),
    ],
)
def test_what_belongs_to_the_run_or_is_broken_is_refused(tmp_path, content, message):
    with pytest.raises(SettingsError, match=message):
        read_ds_config(_write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"train_batch_size": 32},
            "train_batch_size to 32, but the run needs 24: 24 rows a step = 3 a micro-batch x 4",
        ),
        ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps to 1"),
        ({"gradient_clipping": 0.5}, "gradient_clipping to 0.5"),
        ({"bf16": {"enabled": False}}, "bf16.enabled to false"),
        ({"bf16": {"check_grad_overflow": False}}, "bf16.check_grad_overflow to false"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, 'data_types.grad_accum_dtype to "bf16"'),
        ({"communication_data_type": "bf16"}, 'communication_data_type to "bf16", .* over ranks in fp32'),
        ({"gradient_allreduce_op": "sum"}, 'gradient_allreduce_op to "sum", .* means over the targets'),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation to false, .* means over the targets"),
        ({"managed_gradient_accumulation": 1}, "managed_gradient_accumulation to 1, "),
        ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "compute_grad_norm to false, .*is logged"),
    ],
)
def test_contradictions_are_refused(content, message):
    with pytest.raises(SettingsError, match=message):
        _resolve({"zero_optimization": {"stage": 1}, **content})


def test_deepspeeds_clock_is_off_unless_the_file_has_it() -> None:
    """It waits for the device twice in every micro-batch."""
    from deepspeed.runtime.config import DeepSpeedConfig

    assert _resolve({"zero_optimization": {"stage": 1}})["timers"] == {"throughput": {"enabled": False}}
    for name in shipped_ds_configs():
        resolved = _resolve(read_ds_config(name), precision="fp32")
        one_rank = resolved | {"train_batch_size": 12}
        assert DeepSpeedConfig(one_rank).timers_config.enabled is False
    asked = {"zero_optimization": {"stage": 1}, "timers": {"throughput": {"enabled": True}}}
    assert _resolve(asked)["timers"] == {"throughput": {"enabled": True}}


def test_the_file_is_left_as_it_was() -> None:
    config = {"zero_optimization": {"stage": 1}, "bf16": {}}
    _resolve(config)
    assert config == {"zero_optimization": {"stage": 1}, "bf16": {}}


def test_equal_numbers_are_no_contradiction():
    assert _resolve({"zero_optimization": {"stage": 1}, "train_batch_size": 24})["train_batch_size"] == 24


def test_a_pipeline_runs_at_stage_1_only():
    for name in ("pipeline", "zero1"):
        check_parallel(read_ds_config(name), ParallelSettings(pp=4), source=name)
    for stage in (0, 2, 3):
        name = f"zero{stage}"
        message = rf"parallel.pp=4\) cannot run with ZeRO stage {stage} \({name}\)(.|\n)*Use ds_configs/pipeline.json"
        with pytest.raises(SettingsError, match=message):
            check_parallel(read_ds_config(name), ParallelSettings(pp=4), source=name)


def test_a_pipeline_gets_its_own_file():
    assert choose_ds_config(batch_plan(8, 1, data_parallel=2), ParallelSettings(pp=2))[0] == "pipeline"
    assert zero_stage(read_ds_config("pipeline")) == 1


def test_an_offloaded_optimizer_is_torchs(tmp_path):
    config = read_ds_config(_write(tmp_path, {"zero_optimization": _OFFLOADED}))
    assert _resolve(config)["zero_force_ds_cpu_optimizer"] is False
    assert "zero_force_ds_cpu_optimizer" not in _resolve(read_ds_config("zero2"))
    with pytest.raises(SettingsError, match=r"zero_force_ds_cpu_optimizer to true, but the run needs false: .*AdamW"):
        _resolve(config | {"zero_force_ds_cpu_optimizer": True})
    with pytest.raises(SettingsError, match=r"parallel\.pp=2\) cannot run with an offloaded optimizer"):
        check_parallel(config | {"zero_optimization": _OFFLOADED | {"stage": 1}}, ParallelSettings(pp=2), source="x")


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, "offload_optimizer, which needs ZeRO stage 1 or higher"),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, "offload_param, which needs ZeRO stage 3 or higher"),
        ({"stage": 3, "offload_optimizer": {"device": "nvme"}}, 'offload_optimizer.device to "nvme"'),
        ({"stage": 2, "offload_optimizer": "cpu"}, 'expected an object, such as {"device": "cpu"}, got "cpu"'),
    ],
)
def test_offload_that_cannot_run_is_refused(tmp_path, zero, message):
    with pytest.raises(SettingsError, match=message):
        read_ds_config(_write(tmp_path, {"zero_optimization": zero}))


def test_tensor_parallelism_runs_at_stages_1_to_3():
    for stage in (1, 2, 3):
        check_parallel(read_ds_config(f"zero{stage}"), ParallelSettings(tp=2), source=f"zero{stage}")
