"""What a run on GPUs chooses for settings that are not given; the GPU here is made up."""

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.engine import gpus
from toolkit.engine.ds_config import read_ds_config, shipped_ds_configs, zero_stage
from toolkit.run import run_presets
from toolkit.run.division import is_compiled, rank_memories
from toolkit.run.load import declare_run
from toolkit.run.resolve import ResolvedRun, resolve_run
from toolkit.run.settings import TrainSettings


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    """96 rows a step."""
    file = write_run(tmp_path)
    text = file.read_text().replace("global_batch_rows = 8", "global_batch_rows = 96")
    file.write_text("".join(line for line in text.splitlines(keepends=True) if "micro_batch_rows" not in line))
    return str(file)


def _resolve(run_file: str, gpu: int | None, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> ResolvedRun:
    monkeypatch.setattr(gpus, "has_gpu", lambda: gpu is not None)
    monkeypatch.setattr(gpus, "gpu_bytes", lambda: gpu)
    declared = declare_run(run_file, ['precision="bf16"', *overrides])
    return resolve_run(declared, ds_config=None, num_ranks=2)


def _needed(run: ResolvedRun) -> int:
    return max(memory.total for memory in rank_memories(run, run.division))


def test_the_largest_share_that_fits_is_taken(run_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has 48 rows of a step; each number that divides them is the choice on a GPU that has room for no more."""
    divisors = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    needed = {
        rows: _needed(_resolve(run_file, None, monkeypatch, f"train.micro_batch_rows={rows}", "train.compile=true"))
        for rows in divisors
    }
    for rows in divisors:
        run = _resolve(run_file, int(needed[rows] / 0.85) + 2, monkeypatch)
        assert run.division.batch.micro_batch_rows == rows
        assert run.division.ds_config["train_micro_batch_size_per_gpu"] == rows
        (line,) = [choice for choice in run.division.choices if choice.startswith("train.micro_batch_rows ")]
        assert line.startswith(
            f"train.micro_batch_rows {rows}: the largest share that fits, {needed[rows] / 1e9:.1f} of"
        )
        assert ("launching kernels" in line) == (rows < 12)


def test_a_model_of_which_no_row_fits_is_refused(run_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"one row needs \d+\.\d GB on a rank \(weights .*and its GPU has 0\.0, of which 0\.0 are counted on\.\nSet"
    )
    with pytest.raises(SettingsError, match=message):
        _resolve(run_file, 10**5, monkeypatch)
    # Who names a number gets it.
    assert _resolve(run_file, 10**5, monkeypatch, "train.micro_batch_rows=1").division.batch.micro_batch_rows == 1


def test_on_a_cpu_twelve_rows_are_enough(run_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _resolve(run_file, None, monkeypatch).division.batch.micro_batch_rows == 12


def test_blocks_are_compiled_on_gpus(run_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "train.compile true: the run is on GPUs"
    assert told in _resolve(run_file, 10**12, monkeypatch).division.choices
    assert told not in _resolve(run_file, 10**12, monkeypatch, "train.compile=false").division.choices
    assert told not in _resolve(run_file, None, monkeypatch).division.choices


@pytest.mark.parametrize("preset", sorted(run_presets()))
def test_a_preset_leaves_compilation_to_the_zero_stage(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs blocks are compiled but at stage 3, where graphs would break; on a CPU they are not."""
    text = (resources.files("toolkit.run") / f"presets/{preset}.toml").read_text(encoding="utf-8")
    train = TrainSettings.model_validate(tomllib.loads(text).get("train", {}))
    for has_gpu in (True, False):
        monkeypatch.setattr(gpus, "has_gpu", lambda has_gpu=has_gpu: has_gpu)
        for name in shipped_ds_configs():
            config = read_ds_config(name)
            assert is_compiled(train, config) == (has_gpu and zero_stage(config) <= 2), name


def test_memory_is_forecast_for_gpus(run_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that the run compiles there count as compiled, with or without a GPU here."""
    needed = {
        (gpu, compile): _needed(
            _resolve(run_file, gpu, monkeypatch, "train.micro_batch_rows=2", f"train.compile={compile}")
        )
        for gpu in (None, 10**12)
        for compile in ("true", "false")
    }
    assert needed[None, "true"] == needed[10**12, "true"] != needed[None, "false"] == needed[10**12, "false"]
    assert _needed(_resolve(run_file, None, monkeypatch, "train.micro_batch_rows=2")) == needed[None, "true"]


def test_blocks_whose_weights_are_gathered_inside_are_compiled_if_asked(
    run_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs, at ZeRO stage 3: what is not compiled may be checkpointed selectively, too."""
    overrides = ['train.activation_checkpointing="selective"', "train.micro_batch_rows=1"]
    monkeypatch.setattr(gpus, "has_gpu", lambda: True)
    found = resolve_run(declare_run(run_file, overrides), ds_config="zero3", num_ranks=2)
    told = "train.compile false: ZeRO stage 3 gathers weights inside blocks, where graphs would break"
    assert told in found.division.choices
    assert [is_compiled(found.settings.train, read_ds_config(f"zero{stage}")) for stage in range(4)] == [1, 1, 1, 0]
    asked = declare_run(run_file, [*overrides, "train.compile=true"])
    assert is_compiled(asked.settings.train, read_ds_config("zero3"))
    with pytest.raises(SettingsError, match=r"cannot run with train\.compile=true and ZeRO stage 3"):
        resolve_run(asked, ds_config="zero3", num_ranks=2)
    broken = (
        "train.compile true, but ZeRO stage 3 gathers weights inside blocks, where graphs would break: leave it unset"
    )
    for stage in (2, 3):
        asked = declare_run(run_file, ["train.micro_batch_rows=1", "train.compile=true"])
        found = resolve_run(asked, ds_config=f"zero{stage}", num_ranks=2)
        assert (broken in found.division.choices) == (stage == 3)
