"""Models from the hub, and models larger than the memory they may take."""

import os
from pathlib import Path

import pytest

from tests.support.apart import run_apart
from tests.support.hf_decoders import save_decoder
from tests.support.hub_server import HubServer

pytestmark = pytest.mark.long

# A small conversion first, so that imports and the sizes of buffers are not counted.
_CONVERT = """
import shutil, sys, threading, time
from pathlib import Path
import psutil
from toolkit.conversion import from_hf, to_hf
from toolkit.conversion.merging import merge

def convert(name):
    from_hf(f"{name}", f"{name}-imported")
    to_hf(f"{name}-imported", f"{name}-bidirectional")
    to_hf(f"{name}-imported", f"{name}-causal", form="causal", dtype="bf16")
    copies = [Path(shutil.copytree(f"{name}-imported", f"{name}-{number}")) for number in range(3)]
    merge(copies, Path(f"{name}-merged"))

convert("small")
process, peak, done = psutil.Process(), 0, threading.Event()
before = process.memory_info().rss

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, process.memory_info().rss - before)

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
convert("large")
done.set()
watcher.join()
print("peak", peak)
"""


def test_memory_follows_the_largest_tensor_and_not_the_model(tmp_path: Path) -> None:
    """27 tensors of the largest size: two of them and the buffers are less than a third of the model."""
    save_decoder("llama 3", tmp_path / "small")
    model = save_decoder(
        "llama 3",
        tmp_path / "large",
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=9,
        vocab_size=1000,
        # At the width of this one, the toy's wide weights would make rounding grow from layer to layer.
        initializer_range=0.02,
    )
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = run_apart("-c", _CONVERT, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    peak = int(done.stdout.split()[-1])
    # Blocks of 4 MB, their copies, hashing, and logits of all texts.
    buffers = 64 << 20
    assert sum(sizes) > 3 * (2 * max(sizes) + buffers)
    assert peak <= 2 * max(sizes) + buffers


def test_a_model_comes_from_the_hub(tmp_path: Path) -> None:
    save_decoder("qwen3", tmp_path / "hub" / "models" / "someone" / "decoder", max_shard_size="100KB")
    with HubServer(tmp_path / "hub") as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        words = ("-m", "toolkit.cli", "convert", "--from-hf")
        done, missing = (
            run_apart(*words, f"someone/{model}", out, folder=tmp_path, environment={**os.environ, **environment})
            for model, out in (("decoder", "out"), ("nothing", "other"))
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "someone/decoder (qwen3, " in done.stdout
    assert (missing.returncode, (tmp_path / "other").exists()) == (2, False)
    assert "could not download the model someone/nothing" in missing.stderr
