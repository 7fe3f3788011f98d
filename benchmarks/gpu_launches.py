"""Tiny runs by `launchers/pretrain.py`, as users start them, for `benchmarks/gpu.py`: do they learn what a CPU's do?

Each is stopped after `_UNTIL` steps and started again, evaluates and leaves checkpoints. A run of the same settings on
the CPU, in fp32 and without a stop, says what its losses and gradient norms should be.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_scale import Job
from gpu_timing import Row, Rows, attempt
from made_up_run import write_corpus

from toolkit.run import RunFolder
from toolkit.run.metrics import read_lines

PRETRAIN = Path(__file__).resolve().parents[1] / "launchers" / "pretrain.py"
AT_ONCE = 4
TOLERANCES = {"fp32": {"loss": 1e-3, "norm": 1e-2}, "bf16": {"loss": 5e-3, "norm": 5e-2}}
"""Largest relative differences from the CPU's numbers: a GPU multiplies fp32 in parts of fewer bits too."""
_UNTIL = 3
_ON_CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
_RUN = """
run.seed = 7
data = {sequence_length = 512, windows = "random-cut"}
schedule = [{objective = "clm", steps = 4}, {objective = "mlm", steps = 4}]
train = {global_batch_rows = 8, micro_batch_rows = 4}
lr = {peak = 3e-3, warmup_steps = 1, decay_steps = 2}
log = {every = 1, tensorboard = false}
eval.rows = 8
[model]
# Wide, so that attention is far from uniform and a gradient that it loses shows.
initializer_range = 0.1
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 4
num_attention_heads = 2
"""


@dataclass(frozen=True)
class Case:
    """A tiny run: what it trains, and how."""

    name: str
    what: tuple[str, ...] = ()
    """Overrides that change its numbers."""
    how: tuple[str, ...] = ()
    """Overrides that do not."""
    ds_config: str = "zero1"
    precision: str = "bf16"


CASES = (
    Case("heads of 64"),
    Case("heads of 96", ("model.hidden_size=192", "model.num_key_value_heads=1")),
    Case("modernbert", ('model.family="modernbert"', "model.local_attention=64", "model.tie_word_embeddings=true")),
    Case("head norms", ("model.qk_norm=true",), precision="fp32"),
    Case("mixture", ('schedule=[{mix=[{objective="clm",share=0.5},{objective="mlm",share=0.5}],steps=8}]',)),
    Case("zero2", ds_config="zero2"),
    Case("selective", how=('train.activation_checkpointing="selective"',)),
    Case("eager", how=("train.compile=false",), precision="fp32"),
)


def measure_launches(job: Job) -> Rows:
    """Losses of each case beside those of a CPU, as soon as both are there."""
    pools = ThreadPoolExecutor(AT_ONCE), ThreadPoolExecutor(AT_ONCE)
    with tempfile.TemporaryDirectory() as name, pools[0] as on_gpu, pools[1] as on_cpu:
        folder = Path(name)
        _write_inputs(folder)
        references = {
            what: on_cpu.submit(_train, folder, f"cpu-{number}", what, 'precision="fp32"', environment=_ON_CPU)
            for number, what in enumerate({case.what: None for case in job.items})
        }
        work = {on_gpu.submit(_compared, folder, case, references[case.what]) for case in job.items}
        yield from (done.result() for done in as_completed(work))


def _compared(folder: Path, case: Case, reference: "Future[tuple[list[Row], str]]") -> Row:
    row = {"what": "launch", "variant": case.name, "precision": case.precision, "ds_config": case.ds_config}
    return attempt(row, partial(_measure, folder, case, reference))


def _measure(folder: Path, case: Case, reference: "Future[tuple[list[Row], str]]") -> Row:
    run = partial(_train, folder, case.name.replace(" ", "-"), case.what, *case.how)
    run = partial(run, f'precision="{case.precision}"', ds_config=case.ds_config)
    started = time.monotonic()
    run(until=_UNTIL)
    stopped = time.monotonic()
    lines, output = run()
    ended = time.monotonic()
    if f"resuming from step {_UNTIL}" not in output:
        raise RuntimeError(f"the second start did not resume from step {_UNTIL}")
    expected, _ = reference.result()
    row: Row = {"seconds": [round(stopped - started, 1), round(ended - stopped, 1)]}
    row["kernel"] = next((line for line in output.splitlines() if line.startswith("attention kernel")), "")
    for name, limit in TOLERANCES[case.precision].items():
        found, right = list(_numbers(lines, name)), list(_numbers(expected, name))
        row |= {name: found, f"cpu_{name}": right}
        worst = row[f"{name}_difference"] = _largest_difference(found, right)
        if not worst <= limit:
            row["error"] = f"{name} differs from the CPU's by {worst:.2g} of it, at most {limit:g} was expected"
    return row


def _numbers(lines: Sequence[dict[str, Any]], name: str) -> Iterator[float]:
    """Losses of training and evaluation, or gradient norms, of all steps."""
    for line in lines:
        if name == "norm":
            yield from [line["grad_norm"]] if "grad_norm" in line else []
        else:
            yield from [line["loss"]] if "loss" in line else []
            yield from line.get("eval_loss", {}).values()


def _largest_difference(found: Sequence[float], right: Sequence[float]) -> float:
    """Relative; NaN if one is, infinite if there are not as many."""
    return float(np.abs(np.divide(found, right) - 1).max()) if found and len(found) == len(right) else np.inf


def _write_inputs(folder: Path) -> None:
    (folder / "run.toml").write_text(_RUN)
    for seed, name in enumerate(("train", "validation")):
        write_corpus(folder / name, 150, (40, 1024), vocabulary=500, seed=seed)


def _train(
    folder: Path,
    name: str,
    what: Sequence[str],
    *how: str,
    ds_config: str = "zero1",
    until: int | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[list[Row], str]:
    """Start a run, or start it again; returns the lines of its metrics and what it printed."""
    data = [f"data.{part}={folder / part}" for part in ("train", "validation")]
    arguments = ["--config", str(folder / "run.toml"), "--ds_config", ds_config]
    for override in (*data, f"run.dir={folder / name}", *what, *how):
        arguments += ["--set", override]
    output = launch([*arguments, *(["--until", str(until)] if until else [])], environment or {})
    return read_lines(RunFolder(folder / name)), output


def launch(arguments: Sequence[str], environment: dict[str, str]) -> str:
    """What `launchers/pretrain.py` prints; raises if it fails."""
    done = subprocess.run(
        [sys.executable, str(PRETRAIN), *arguments],
        # The cores are shared with the other runs.
        env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(AT_ONCE)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print("$ pretrain.py", *arguments, f"\n{done.stdout}", flush=True)
    if done.returncode:
        last = " ".join(done.stdout.strip().splitlines()[-3:])
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return done.stdout
