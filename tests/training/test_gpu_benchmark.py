"""benchmarks/gpu.py, as far as a machine without a GPU can tell: it refuses, and its measurement measures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def test_without_a_gpu_it_says_so_and_leaves_with_2():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(BENCHMARK)], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "There is no GPU" in done.stderr


def test_it_measures_the_preset_that_it_is_told(tmp_path):
    """The very function that runs on a GPU, on a CPU: the preset made toy-sized, a peak given, so that MFU is known."""
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    overrides = [f"model.{name}={value}" for name, value in (sizes | heads).items()]
    overrides += ["data.sequence_length=64", "train.compile=false", "log.peak_tflops=0.5", 'precision="fp32"']
    script = (
        f"import sys, json; sys.path.insert(0, {str(BENCHMARK.parent)!r}); import gpu; from pathlib import Path\n"
        f"row = gpu.measure('210m', Path({str(tmp_path)!r}), micro_rows=2, steps=6, vocabulary=300, "
        f"overrides={overrides!r})\nprint(json.dumps(row))"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    import json

    row = json.loads(done.stdout.splitlines()[-1])
    assert row["first_loss"] == pytest.approx(5.70, abs=0.05)  # ln 300
    assert row["tokens_per_second"] > 0
    assert row["mfu"] == pytest.approx(row["model_flops_per_second"] / 0.5e12, rel=0.5)
    assert (row["sequence_length"], row["micro_batches"], row["memory_gb"]) == (64, 4, None)
    assert not (tmp_path / "run" / "checkpoints").exists()
